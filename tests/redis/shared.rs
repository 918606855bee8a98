//! What tests of several folders share.

use testkit::{Clock as ServerClock, Server};
use tollgate::clock::{Clock, Timestamp};

/// A server's clock, which only moves when it is set, by which rejections are cached too.
#[derive(Debug)]
pub(crate) struct SameTime(pub(crate) ServerClock);

impl Clock for SameTime {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.micros() as i64)
    }
}

/// Whether a client of the server waits for the end of its pause.
pub(crate) fn a_client_waits(server: &Server) -> bool {
    let clients = server.command(&["CLIENT", "LIST"]).text();
    let mut flags = clients
        .split(' ')
        .filter_map(|part| part.strip_prefix("flags="));
    flags.any(|flags| flags.contains('b'))
}
