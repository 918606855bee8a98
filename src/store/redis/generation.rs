//! The key that changes when somebody who was refused may pass early.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, cmd};
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::{Shared, route::Servers, tags::Tags};
use crate::{clock::Timestamp, error::StoreError};

/// How long the key lives: longer than any refusal is believed without reading it.
const LIFE_MS: u64 = 86_400_000;

/// How often a cluster is told, if it doesn't hear.
const TRIES: usize = 5;

/// Where the generation is kept, and how it is told.
///
/// One server hears of it in the call that gives back. On a cluster the key is in a slot of its own, so it is told right
/// after the call, by a command of its own: if the process ends in between, or the node can't be reached, other processes
/// believe a refusal until it ends by itself.
#[derive(Debug)]
pub(super) struct Generation {
    key: String,
    /// By a command of its own.
    apart: bool,
    /// How many words there are that are not told yet; while there are, somebody is telling.
    untold: Arc<AtomicU64>,
}

impl Generation {
    pub(super) fn new(prefix: &str, tags: Option<&Tags>) -> Self {
        let tag = tags.map_or_else(String::new, |tags| {
            format!("{{{}}}", String::from_utf8_lossy(&tags.text(0)))
        });
        Self {
            key: format!("{prefix}{tag}gen"),
            apart: tags.is_some(),
            untold: Arc::default(),
        }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The key, if the call that gives back tells it.
    pub(super) fn declared(&self) -> Option<&str> {
        (!self.apart).then_some(self.key.as_str())
    }

    /// What it is now; zero if there is none.
    pub(super) async fn read(&self, servers: &Servers) -> Result<u64, StoreError> {
        let mut get = cmd("GET");
        let number: Option<u64> = servers.run(0, get.arg(&self.key)).await?;
        Ok(number.unwrap_or(0))
    }

    fn telling(&self, at: Timestamp) -> Option<Cmd> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg(at.as_micros());
        set.arg("PX").arg(LIFE_MS);
        self.apart.then_some(set)
    }
}

impl Shared {
    /// Tells that something was given back, where the call that gave it back couldn't.
    pub(super) fn announce(self: &Arc<Self>, at: Timestamp) {
        let (Some(set), Ok(handle)) = (self.generation.telling(at), Handle::try_current()) else {
            return;
        };
        let untold = &self.generation.untold;
        if untold.fetch_add(1, Ordering::AcqRel) > 0 {
            // Whoever is telling tells once more.
            return;
        }
        let (shared, telling) = (self.clone(), Telling(untold.clone()));
        drop(handle.spawn(async move {
            let mut set = set;
            loop {
                let words = telling.0.load(Ordering::Acquire);
                shared.tell(&set).await;
                let told = telling.0.fetch_sub(words, Ordering::AcqRel) == words;
                if told {
                    return;
                }
                if let Some(again) = shared.generation.telling(shared.server_time()) {
                    set = again;
                }
            }
        }));
    }

    async fn tell(&self, set: &Cmd) {
        for _ in 0..TRIES {
            let told = self.servers.run::<redis::Value>(0, set);
            if let Ok(Ok(_)) = timeout(self.deadline, told).await {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A runtime that ends leaves nobody believing that it still tells.
struct Telling(Arc<AtomicU64>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
