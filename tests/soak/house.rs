//! The server, the network before it, and the limiters that count on it.

use std::time::{Duration, Instant};

use testkit::{Proxy, Server};
use tokio::{runtime::Handle, task::block_in_place};
use tollgate::{Fallback, FixedWindow, Key, Limiter, Policy, Quota, RedisStore, Source};

use crate::{DEADLINE, PROCESSES};

/// What each key is allowed.
pub(crate) const QUOTA: u64 = 200;
/// What one process admits while the store is at fault.
pub(crate) const SHARE: u64 = QUOTA.div_ceil(PROCESSES as u64);

pub(crate) struct House {
    pub(crate) server: Server,
    pub(crate) proxy: Proxy,
    /// The last one is on the server itself, the others behind the proxy.
    pub(crate) limiters: Vec<Limiter>,
}

impl House {
    pub(crate) fn open() -> Self {
        // What a killed server has answered, it has written. It doesn't wait for the disk, which others use, too.
        let server = Server::builder()
            .arg("appendonly", "yes")
            .arg("appendfsync", "no")
            .start();
        let proxy = Proxy::to(server.addr());
        let near = server.url();
        let far = format!("redis://{}", proxy.addr());
        let urls = (1..PROCESSES).map(|_| &far).chain([&near]);
        let limiters = urls.map(|url| limiter(url)).collect();
        Self {
            server,
            proxy,
            limiters,
        }
    }

    /// How many units of a key are used under both policies, which must agree; `None` if the store can't say now.
    pub(crate) async fn used(&self, key: Key) -> Option<[u64; 2]> {
        let limiter = self.limiters.last()?;
        let seen = limiter.peek(key).await;
        if seen.source() != Source::Store {
            return None;
        }
        let used = |policy| {
            let verdict = seen.verdict(policy)?;
            Some(verdict.limit() - verdict.remaining())
        };
        Some([used("narrow")?, used("wide")?])
    }

    /// What is wrong once nobody uses it any more.
    pub(crate) async fn close(self) -> Vec<String> {
        let Self {
            server,
            proxy,
            limiters,
        } = self;
        let mut wrong = Vec::new();
        let immortal = block_in_place(|| server.immortal_keys());
        if !immortal.is_empty() {
            wrong.push(format!("keys that never expire: {immortal:?}"));
        }
        drop(limiters);
        let start = Instant::now();
        loop {
            let clients = block_in_place(|| server.command(&["CLIENT", "LIST"]).text());
            let clients = clients.lines().count() - 1;
            let tasks = Handle::current().metrics().num_alive_tasks();
            let ways = proxy.connections();
            if (clients, tasks, ways) == (0, 0, 0) {
                return wrong;
            }
            if start.elapsed() > Duration::from_secs(20) {
                wrong.push(format!(
                    "left over: {clients} connections to the server, {ways} through the proxy, {tasks} tasks"
                ));
                return wrong;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Two policies, so that there are two counts that must agree: requests are charged under both or none.
fn limiter(url: &str) -> Limiter {
    let store = RedisStore::builder().url(url).deadline(DEADLINE).build();
    Limiter::builder()
        .store(store.expect("a store"))
        .policy(Policy::new("narrow", Quota::requests(QUOTA).per_month()))
        .policy(Policy::new("wide", Quota::requests(10 * QUOTA).per_month()).strategy(FixedWindow))
        .on_store_error(Fallback::across(PROCESSES as u32))
        .build()
        .expect("a limiter")
}
