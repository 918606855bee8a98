//! Redis for a picture: a server of its own, whose clock stands still until it is set.

use std::time::{Duration, Instant};

use testkit::{Clock as ServerClock, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tollgate::clock::{Clock, Timestamp};

use crate::Result;

/// 2027-01-15 08:00 UTC, as the clocks of the runs in process.
const START: u64 = 1_800_000_000_000_000;

/// Far more than what is waited for takes, on a busy machine too.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// A server and its clock.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) server: Server,
    clock: ServerClock,
}

impl Redis {
    /// Starts a server at 08:00:00.
    pub(crate) fn start() -> Self {
        let clock = ServerClock::at(START);
        let server = Server::builder().clock(&clock).start();
        Self { server, clock }
    }

    /// Sets the clock to so long after 08:00:00.
    pub(crate) fn set(&self, since_start: Duration) {
        self.clock.set(START + since_start.as_micros() as u64);
    }

    /// The server's clock as one in process.
    pub(crate) fn clock(&self) -> impl Clock {
        SameTime(self.clock.clone())
    }

    /// Waits until every task that a reply has reached by now has gone on. On a runtime of one thread, the tasks go on before
    /// the replies to these commands are read; how many commands that takes depends on the order in which the sockets are polled.
    pub(crate) async fn settle(&self) -> Result<()> {
        let mut stream = TcpStream::connect(self.server.addr()).await?;
        for _ in 0..50 {
            stream.write_all(b"PING\r\n").await?;
            stream.read_exact(&mut [0; 7]).await?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct SameTime(ServerClock);

impl Clock for SameTime {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.micros() as i64)
    }
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, mut probe: impl AsyncFnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !probe().await {
        if start.elapsed() > TIMEOUT {
            return Err(format!("not within {TIMEOUT:?}: {what}").into());
        }
        // The runtime's time may be stopped.
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Stops the time of a runtime of one thread while `run` runs on it: nothing ages, and no timeout expires, however long it takes.
pub(crate) async fn in_stopped_time<T>(run: impl Future<Output = T>) -> T {
    tokio::time::pause();
    // Stopped time would leap to the next timer while the runtime waits for a reply, if no thread of its pool were at work.
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let at_work = tokio::task::spawn_blocking(move || end.recv());
    let output = run.await;
    tokio::time::resume();
    drop(ends);
    // It ends with an error, since nothing was sent.
    let _ = at_work.await;
    output
}
