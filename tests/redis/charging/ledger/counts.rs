//! A count beside the limiter's.

use std::sync::atomic::AtomicI64;

use tollgate_tests::prelude::*;

use super::traffic::ROUNDS;

/// Counts what was admitted at one instant and not refunded, independently of the limiter.
#[derive(Clone)]
pub(super) enum AdmittedUnits {
    Local(Arc<[AtomicI64; ROUNDS as usize + 1]>),
    Server(redis::aio::MultiplexedConnection),
}

impl AdmittedUnits {
    /// Beside what is tested, in a database of its own.
    pub(super) async fn on(url: &str) -> Self {
        let client = redis::Client::open(format!("{url}/1")).expect("a URL");
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Self::Server(connection.await.expect("a connection"))
    }

    /// The units after those.
    pub(super) async fn add(&self, instant: u64, units: i64) -> i64 {
        match self {
            Self::Local(counters) => {
                counters[instant as usize].fetch_add(units, Ordering::SeqCst) + units
            }
            Self::Server(connection) => {
                let mut command = redis::cmd("INCRBY");
                command.arg(format!("tally-{instant}")).arg(units);
                let sum = command.query_async(&mut connection.clone()).await;
                sum.expect("a response")
            }
        }
    }
}
