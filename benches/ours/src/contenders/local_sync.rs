//! The scheme that counts in process and synchronizes with Redis at intervals, in its simplest form.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::{Client, aio::MultiplexedConnection};
use tokio::task::JoinHandle;

use super::redis::{address, config};
use crate::{
    keys::Rule,
    load::{Contender, Rng},
};

/// The time from one synchronization to the next: as long as a lease lives unless set.
const INTERVAL: Duration = Duration::from_millis(50);

/// A fixed window of one key: admits by the count at the last synchronization, and what this limiter has admitted since.
#[derive(Debug)]
pub struct LocalSync {
    limit: u64,
    period: Duration,
    count: Arc<Mutex<Count>>,
    task: JoinHandle<()>,
}

/// The count of one window.
#[derive(Debug, Default)]
struct Count {
    window: u128,
    /// Of all limiters, at the last synchronization.
    known: u64,
    /// What this limiter has admitted, and not synchronized.
    own: u64,
}

impl LocalSync {
    /// On the server at `url`, by a rule as a window.
    ///
    /// # Panics
    ///
    /// If there is no connection.
    pub async fn open(url: &str, rule: Rule) -> Self {
        let client = Client::open(address(url)).expect("an address");
        let connection = client
            .get_multiplexed_async_connection_with_config(&config())
            .await;
        let (limit, period) = rule.window();
        let count = Arc::default();
        let task = synchronize(
            connection.expect("a connection"),
            Arc::clone(&count),
            period,
        );
        Self {
            limit,
            period,
            task: tokio::spawn(task),
            count,
        }
    }
}

impl Contender for LocalSync {
    async fn decide(&self, _: &mut Rng) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let window = now.unwrap_or_default().as_micros() / self.period.as_micros();
        let mut count = lock(&self.count);
        if count.window != window {
            *count = Count {
                window,
                ..Count::default()
            };
        }
        let admitted = count.known + count.own < self.limit;
        count.own += u64::from(admitted);
        admitted
    }
}

impl Drop for LocalSync {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Adds what the limiter has admitted to the count on Redis, and reads that of all limiters.
async fn synchronize(
    mut connection: MultiplexedConnection,
    count: Arc<Mutex<Count>>,
    period: Duration,
) {
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        let (window, own) = {
            let count = lock(&count);
            (count.window, count.own)
        };
        let key = format!("sync:{window}");
        let mut pipeline = redis::pipe();
        pipeline.incr(&key, own);
        pipeline.pexpire(&key, period.as_millis() as i64).ignore();
        let (known,): (u64,) = pipeline
            .query_async(&mut connection)
            .await
            .expect("a reply");
        let mut count = lock(&count);
        if count.window == window {
            count.known = known;
            count.own -= own;
        }
    }
}

fn lock(count: &Mutex<Count>) -> MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}
