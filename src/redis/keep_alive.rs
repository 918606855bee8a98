//! The permits of in-flight limits that requests of this process hold, and the task that renews them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{cross_slot, io::Io, request::op::CounterOps};
use crate::{
    store::{Op, StoreResponse},
    sync::lock,
};

/// How often a permit is renewed within its TTL.
const HEARTBEATS_PER_TTL: u32 = 3;

/// How often the task looks within a TTL for permits that are due, or whose renewal has failed.
const CHECKS_PER_TTL: u32 = 8 * HEARTBEATS_PER_TTL;

/// The longest TTL of built-in permits.
const MAX_TTL: Duration = Duration::from_secs(86_400);

/// Upper bound of the renewals in flight: a request that is sent meanwhile waits behind no more than these.
const MAX_RENEWALS: usize = 128;

/// The permits that requests hold. While there are any, a task on the IO thread renews them.
#[derive(Debug)]
pub(super) struct PermitRegistry {
    io: Arc<Io>,
    registry: Mutex<Registry>,
    ttl_changed: Notify,
}

#[derive(Debug)]
struct Registry {
    /// By the number of the request.
    held: HashMap<u64, HeldPermits>,
    last_id: u64,
    /// The shortest TTL of the store's limits: under a policy whose TTL was changed, each request shortens the permits that were taken
    /// before to the shorter one.
    ttl: Duration,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct HeldPermits {
    counters: CounterOps,
    renewed_at: Instant,
}

/// The permits of one request. Dropping it ends their renewals.
#[derive(Debug)]
pub(super) struct RegisteredPermits {
    registry: Arc<PermitRegistry>,
    id: u64,
}

impl PermitRegistry {
    pub(super) fn new(io: &Arc<Io>) -> Arc<Self> {
        let registry = Registry {
            held: HashMap::new(),
            last_id: 0,
            ttl: MAX_TTL,
            task: None,
        };
        Arc::new(Self {
            io: io.clone(),
            registry: Mutex::new(registry),
            ttl_changed: Notify::new(),
        })
    }

    /// Renews these permits until the returned value is dropped.
    pub(super) fn add(self: &Arc<Self>, counters: CounterOps) -> RegisteredPermits {
        let mut registry = lock(&self.registry);
        registry.last_id += 1;
        let id = registry.last_id;
        if !counters.is_empty() {
            let renewed_at = self.io.now();
            let permits = HeldPermits {
                counters,
                renewed_at,
            };
            registry.held.insert(id, permits);
            if registry.task.as_ref().is_none_or(JoinHandle::is_finished) {
                let runtime = self.io.runtime();
                registry.task = runtime.map(|runtime| runtime.spawn(self.clone().run()));
            }
        }
        drop(registry);
        RegisteredPermits {
            registry: self.clone(),
            id,
        }
    }

    /// Renews all permits as often as this TTL needs it.
    pub(super) fn shorten_ttl(&self, ttl: Duration) {
        let mut registry = lock(&self.registry);
        if ttl < registry.ttl {
            registry.ttl = ttl;
            self.ttl_changed.notify_one();
        }
    }

    /// Renews the permits, some at a time. It is aborted when there are none.
    async fn run(self: Arc<Self>) {
        loop {
            let ttl = lock(&self.registry).ttl;
            // Times out unless a policy with a shorter TTL is registered.
            let _ = timeout(ttl / CHECKS_PER_TTL, self.ttl_changed.notified()).await;
            for ids in self.due().chunks(MAX_RENEWALS) {
                let sent_at = self.io.now();
                for (id, response) in self.send(ids) {
                    if response.result().await.is_ok()
                        && let Some(permits) = lock(&self.registry).held.get_mut(&id)
                    {
                        permits.renewed_at = sent_at;
                    }
                }
            }
        }
    }

    /// The permits that were not renewed for a third of the TTL.
    fn due(&self) -> Vec<u64> {
        let (registry, now) = (lock(&self.registry), self.io.now());
        let interval = registry.ttl / HEARTBEATS_PER_TTL;
        let held = registry.held.iter();
        let due = held.filter(|(_, permits)| permits.renewed_at + interval <= now);
        due.map(|(id, _)| *id).collect()
    }

    /// Sends renewals of permits that are still held.
    fn send(&self, ids: &[u64]) -> Vec<(u64, StoreResponse)> {
        let registry = lock(&self.registry);
        let held = ids.iter().filter_map(|id| {
            let permits = registry.held.get(id)?;
            Some((*id, permits.counters.clone()))
        });
        let held: Vec<_> = held.collect();
        drop(registry);
        let calls = held.into_iter();
        let calls = calls.map(|(id, counters)| {
            let response = cross_slot::execute(&self.io, Op::Renew, counters);
            (id, response)
        });
        calls.collect()
    }
}

impl Drop for RegisteredPermits {
    fn drop(&mut self) {
        let mut registry = lock(&self.registry.registry);
        registry.held.remove(&self.id);
        if registry.held.is_empty()
            && let Some(task) = registry.task.take()
        {
            task.abort();
        }
    }
}
