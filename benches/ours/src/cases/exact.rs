//! How many concurrent requests are admitted: speed is worth nothing where it is more than the limit.

use std::sync::Arc;

use testkit::Server;

use crate::{
    contenders::tollgate::{TollgateLimiter, in_process, on_redis},
    keys::{Callers, Rule},
    load::{Contender, Rng},
    outcome::{Outcome, Row, Target, Unit},
};

/// The limit.
pub const LIMIT: u64 = 1_000;

/// How many tasks send requests at once.
pub const TASKS: usize = 512;

/// How many requests each task sends.
pub const TIMES: usize = 16;

pub(super) async fn limit() -> Vec<Outcome> {
    let server = Server::start();
    let rule = Rule::at_once(LIMIT);
    let on_redis = TollgateLimiter::one(on_redis(&server.url()), rule, Callers::kept(1)).cached();
    let in_process = TollgateLimiter::one(in_process(), rule, Callers::kept(1));
    let redis = race(Arc::new(on_redis), TASKS, TIMES).await;
    let memory = race(Arc::new(in_process), TASKS, TIMES).await;
    let immortal = server.immortal_keys().len();
    let row = |measure, value, target| {
        let target = Target::Exactly(target);
        Row::number(measure, value, Unit::Count, target)
    };
    let admitted = |admitted: u64| row("admitted", admitted as f64, LIMIT as f64);
    let title = |store| format!("limit of 1,000, 512 tasks send 8,192 requests, {store}");
    vec![
        Outcome::alone("exact", title("on Redis"), admitted(redis)).row(row(
            "keys without a TTL",
            immortal as f64,
            0.0,
        )),
        Outcome::alone("exact", title("in process"), admitted(memory)),
    ]
}

/// Sends so many requests from each of so many tasks, and returns how many were admitted.
///
/// # Panics
///
/// If the contender does.
pub async fn race<C: Contender>(contender: Arc<C>, tasks: usize, times: usize) -> u64 {
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let contender = contender.clone();
            tokio::spawn(async move {
                let mut rng = Rng::new(task);
                let mut admitted = 0;
                for _ in 0..times {
                    admitted += u64::from(contender.decide(&mut rng).await);
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("a contender must not panic");
    }
    admitted
}
