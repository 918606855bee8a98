//! A rejection cache at work: which requests call Redis, and which are rejected without a call.

use std::time::Duration;

use tollgate::{Limiter, Policy, Quota, RedisStore, observe::DecisionSource};

use crate::{
    Result,
    redis::{Redis, TIMEOUT, in_stopped_time, until},
};

/// Clients, of which half send a request in each step. One after the other begins, one each step.
const CLIENTS: u32 = 20;

/// The steps of the run, and the time from one to the next.
pub(crate) const STEPS: u32 = 100;
pub(crate) const STEP: Duration = Duration::from_millis(250);

/// How long the cache rejects without asking the store whether that may have changed: the default.
const STALENESS: Duration = Duration::from_secs(1);

/// What became of the requests of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Requests that Redis admitted.
    pub admitted: u64,
    /// Requests that Redis rejected.
    pub rejected: u64,
    /// Requests that the cache rejected.
    pub cached: u64,
    /// Reads of the key that says whether cached rejections still hold.
    pub reads: u64,
}

/// Sends requests of clients with six a minute each through one process, whose cached rejections age by the steps of the
/// clock alone.
pub async fn run() -> Result<Vec<Step>> {
    in_stopped_time(run_steps()).await
}

async fn run_steps() -> Result<Vec<Step>> {
    let redis = Redis::start();
    let store = RedisStore::builder()
        .url(redis.server.url())
        .timeout(TIMEOUT)
        .max_overrides(0)
        .rejection_cache_clock(redis.clock())
        .rejection_cache_staleness(STALENESS);
    let limiter = Limiter::builder()
        .store(store.build()?)
        .policy(Policy::new("api", Quota::requests(6).per_minute()))
        .build()?;
    // Connects, and loads the script.
    let _ = limiter.check("first").await;
    redis.server.reset_stats();
    let mut steps = Vec::new();
    let (mut calls, mut reads, mut last_read) = (0, 0, None);
    for number in 0..STEPS {
        let now = STEP * number;
        redis.set(now);
        let mut step = Step::default();
        for client in (0..CLIENTS.min(number + 1)).filter(|client| (client + number) % 2 == 0) {
            let decision = limiter.check(format!("client {client}")).await;
            match (decision.source(), decision.is_admitted()) {
                (DecisionSource::Store, true) => step.admitted += 1,
                (DecisionSource::Store, false) => step.rejected += 1,
                (DecisionSource::RejectionCache, _) => step.cached += 1,
                other => return Err(format!("{other:?}").into()),
            }
            // Read twice per staleness while there are rejections. It's read by a task of its own: wait for it.
            let is_due = last_read.is_none_or(|last| now - last >= STALENESS / 2);
            if !decision.is_admitted() && is_due {
                last_read = Some(now);
                step.reads += 1;
                reads += 1;
                let what = "the read of the cache's epoch";
                until(what, async || redis.server.calls("eval") == reads).await?;
                redis.settle().await?;
            }
        }
        calls += step.admitted + step.rejected;
        steps.push(step);
    }
    let counted = (redis.server.calls("evalsha"), redis.server.calls("eval"));
    if counted != (calls, reads) {
        return Err(format!("Redis counted {counted:?} calls, not {:?}", (calls, reads)).into());
    }
    Ok(steps)
}
