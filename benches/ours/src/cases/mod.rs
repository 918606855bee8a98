//! What is measured: a file for each kind.

use std::{future::Future, pin::Pin};

use crate::{load::Load, outcome::Outcome, plan::Plan};

mod cluster;
mod exact;
mod key_count;
mod large_costs;
mod large_heads;
mod latency;
mod layer;
mod leases;
mod memory;
mod metrics;
mod policies;
mod redis;
mod rejected;
mod server;

pub use exact::{LIMIT, TASKS, TIMES, race};
pub use leases::{FLEET_ARGUMENT, fleet_process, over};

/// Something to measure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it asks.
    pub about: &'static str,
    /// Measures it.
    pub run: fn(Plan) -> Outcomes,
}

/// What will come of a case.
pub type Outcomes = Pin<Box<dyn Future<Output = Vec<Outcome>> + Send>>;

/// All of them.
pub const CASES: [Case; 30] = [
    Case {
        name: "cold",
        about: "512 tasks, many keys, on Redis",
        run: |plan| Box::pin(redis::cold(plan)),
    },
    Case {
        name: "hot",
        about: "512 tasks, one hot key, on Redis",
        run: |plan| Box::pin(redis::hot(plan)),
    },
    Case {
        name: "month",
        about: "512 tasks, many keys, a million per 30 days, on Redis",
        run: |plan| Box::pin(redis::month(plan)),
    },
    Case {
        name: "slow",
        about: "512 tasks, many keys, a thousand per 30 days, on Redis",
        run: |plan| Box::pin(redis::slow(plan)),
    },
    Case {
        name: "some",
        about: "64 tasks, many keys, on Redis",
        run: |plan| Box::pin(redis::some(plan)),
    },
    Case {
        name: "single",
        about: "one task, on Redis",
        run: |plan| Box::pin(redis::single(plan)),
    },
    Case {
        name: "lone",
        about: "one task on a runtime of one thread, on Redis",
        run: |plan| Box::pin(redis::lone(plan)),
    },
    Case {
        name: "latency",
        about: "1, 2, 8 and 64 tasks, on Redis behind a link of 0.75 ms",
        run: |plan| Box::pin(latency::callers(plan)),
    },
    Case {
        name: "cluster",
        about: "512 tasks, many keys, on a cluster of three masters",
        run: |plan| Box::pin(cluster::cold(plan)),
    },
    Case {
        name: "leases",
        about: "one hot key with leases and without, on Redis",
        run: |plan| Box::pin(leases::hot(plan)),
    },
    Case {
        name: "zipf",
        about: "1,000 keys by Zipf's law with leases and without, on Redis",
        run: |plan| Box::pin(leases::zipf(plan)),
    },
    Case {
        name: "rare",
        about: "many keys that are not hot, with leases and without, on Redis",
        run: |plan| Box::pin(leases::rare(plan)),
    },
    Case {
        name: "fleet",
        about: "Redis's processor time for 64 limiters in 4 processes",
        run: |plan| Box::pin(leases::fleet(plan)),
    },
    Case {
        name: "held",
        about: "what leases hold for requests of unequal costs under two policies",
        run: |plan| Box::pin(leases::held(plan)),
    },
    Case {
        name: "over",
        about: "throughput, and how much of a limit is exceeded by limiters that share it",
        run: |plan| Box::pin(over::limit(plan)),
    },
    Case {
        name: "policies",
        about: "three policies at once, on Redis",
        run: |plan| Box::pin(policies::three(plan)),
    },
    Case {
        name: "costs",
        about: "plain requests beside those of large costs, on Redis",
        run: |plan| Box::pin(large_costs::beside(plan)),
    },
    Case {
        name: "denied",
        about: "a key whose rejection is cached",
        run: |plan| Box::pin(rejected::known(plan)),
    },
    Case {
        name: "memory",
        about: "in process, called directly",
        run: |plan| Box::pin(memory::direct(plan)),
    },
    Case {
        name: "now",
        about: "in process, without await",
        run: |plan| Box::pin(memory::now(plan)),
    },
    Case {
        name: "outgoing",
        about: "in process, a layer of outgoing requests that do not wait",
        run: |plan| Box::pin(memory::outgoing(plan)),
    },
    Case {
        name: "metrics",
        about: "in process, with metrics and without",
        run: |plan| Box::pin(metrics::in_process_with_and_without(plan)),
    },
    Case {
        name: "admitting",
        about: "in process, through the layer, admitted",
        run: |plan| Box::pin(layer::admitting(plan)),
    },
    Case {
        name: "refusing",
        about: "in process, through the layer, rejected",
        run: |plan| Box::pin(layer::refusing(plan)),
    },
    Case {
        name: "added",
        about: "what the layer adds to a bare service",
        run: |plan| Box::pin(layer::added(plan)),
    },
    Case {
        name: "heads",
        about: "many policies and conditions, for usual heads of requests and large ones",
        run: |plan| Box::pin(large_heads::large_heads(plan)),
    },
    Case {
        name: "served",
        about: "an axum server, loaded over HTTP by wrk",
        run: |plan| Box::pin(server::over_http(plan)),
    },
    Case {
        name: "exact",
        about: "how many are admitted of a limit of 1,000",
        run: |_| Box::pin(exact::limit()),
    },
    Case {
        name: "bytes",
        about: "memory of a key in Redis",
        run: |plan| Box::pin(key_count::bytes(plan)),
    },
    Case {
        name: "vast",
        about: "ten million keys in Redis",
        run: |plan| Box::pin(key_count::vast(plan)),
    },
];

/// So many tasks that wait for Redis.
fn waiting(plan: &Plan, tasks: usize) -> Load {
    Load {
        tasks,
        time: plan.time,
        stint: 1,
    }
}

/// So many tasks that never wait, and let others run from time to time.
fn busy(plan: &Plan, tasks: usize) -> Load {
    Load {
        tasks,
        time: plan.time,
        stint: 256,
    }
}

/// The number of keys, as text for a title.
fn keys(keys: usize) -> String {
    match keys {
        1 => "one hot key".into(),
        _ => format!("{} keys", crate::outcome::grouped(keys as f64)),
    }
}
