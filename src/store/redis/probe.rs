//! Probing a store whose breaker is open, so that no request has to find out by its own deadline.

use std::sync::Arc;

use deadpool_redis::Connection;
use redis::Value;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until, timeout},
};

use super::{Shared, batch::Batch, fault, route::Servers};
use crate::{error::StoreError, guard::breaker::Breaker};

/// Has this runtime see to the probes until the breaker closes, unless somebody does. Should the runtime end before, the next
/// question has another one do it.
pub(super) fn start(shared: &Arc<Shared>, breaker: &Arc<Breaker>, tag: usize) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let Some(watch) = breaker.watch(Instant::now()) else {
        return;
    };
    let shared = Arc::downgrade(shared);
    drop(runtime.spawn(async move {
        while let Some(due) = watch.due() {
            sleep_until(due).await;
            // A store that nobody has any more needs no probe.
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if watch.begin(Instant::now() + shared.deadline) {
                let answered = timeout(shared.deadline, shared.is_well(tag)).await;
                let well = answered.unwrap_or(false);
                if !well {
                    // The keys may be elsewhere by now.
                    shared.servers.doubt();
                }
                watch.end(well, Instant::now());
            }
        }
        if !watch.is_over() {
            return;
        }
        tracing::info!("the store answers again");
        drop(watch);
        if let Some(shared) = shared.upgrade() {
            shared.kept.send(tag);
        }
    }));
}

impl Shared {
    /// Whether the server of a hash tag's keys runs the script, for nobody: what lives and runs nothing, such as a server that
    /// is paused, is of no use.
    async fn is_well(&self, tag: usize) -> bool {
        let script = self.script();
        let nothing = Batch::default();
        let now = self.server_time();
        let call = nothing.call(&script, false, now, self.generation.declared());
        // A server that lacks the script has answered, too.
        match &self.servers {
            Servers::One(source) => {
                let Ok(connection) = source.connection().await else {
                    return false;
                };
                let mut tried = Tried(Some(connection));
                let Some(connection) = &mut tried.0 else {
                    return false;
                };
                let reply: Result<Value, _> = call.query_async(&mut **connection).await;
                let well = reply.map_or_else(|error| !fault::meant_by(&error).counts, |_| true);
                if well {
                    // The lane takes it from the pool.
                    drop(tried.0.take());
                }
                well
            }
            Servers::Cluster(cluster) => match cluster.run::<Value>(tag, &call).await {
                Ok(_) => true,
                Err(StoreError::Server { code, .. }) => !fault::meant_by_code(&code).counts,
                Err(_) => false,
            },
        }
    }
}

/// A connection that may be dead. Unless it has been taken out before, it doesn't go back to its pool.
struct Tried(Option<Connection>);

impl Drop for Tried {
    fn drop(&mut self) {
        drop(self.0.take().map(Connection::take));
    }
}
