//! The command line, on files and on a service with its Redis.

use crate::printed::{page::Page, session::Session};
use tollgate_tests::prelude::*;

const TOKEN: &str = "a-token-of-the-operators";

const BEFORE: &str = "
[policies.api]
quota = '10/min'
[policies.login]
quota = '5/min'
[policies.uploads]
quota = '100/h'
";

const AFTER: &str = "
on_store_error = 'reject'
[policies.api]
quota = '20/min'
[policies.login]
quota = '5/min'
";

pub(crate) fn run(page: &mut Page) {
    let mut session = Session::start(Timers::Stopped);
    session.write("limits.toml", &page.expect("toml").text);
    session.run_next(page, 1);

    session.write("limits.toml", BEFORE);
    session.write("new.toml", AFTER);
    session.run_next(page, 1);

    let redis = Server::builder().clock(session.clock()).start();
    let limits = page.expect("toml").text;
    assert!(limits.contains(":6379"), "{limits}");
    let port = format!(":{}", redis.port());
    session.write("limits.toml", &limits.replace(":6379", &port));
    session.start_service_of_file(TOKEN);
    session.export("TOLLGATE_ADMIN_TOKEN", TOKEN);
    session.port(6379, redis.port());
    while let Some(block) = page.next() {
        session.run(page, &block);
    }
}
