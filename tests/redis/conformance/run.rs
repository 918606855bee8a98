//! Running a trace.

use std::time::Duration;

use serde_json::Value;
use tollgate::{
    Admission, Decision, Key, Limiter, ManualClock, Rejected, RetryAfter,
    clock::Timestamp,
    limiter::{Check, LimitStatus, LimiterBuilder, PolicyDecision, Refund},
    observe::DecisionSource,
};

use tollgate_tests::{charges::charge, results::Decided};

use super::trace::Trace;

/// Whose clock is set: the in-process store's, or the server's.
pub(crate) enum Time {
    Local(ManualClock),
    Server(testkit::Clock),
}

impl Time {
    fn set(&self, micros: i64) {
        match self {
            Self::Local(clock) => clock.set(Timestamp::from_micros(micros)),
            Self::Server(clock) => clock.set(micros as u64),
        }
    }
}

/// How the n requests of one operation are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Singly,
    Concurrently,
}

/// The requests of one operation.
type Charged = Vec<Result<Admission, Rejected>>;

pub(crate) async fn run(
    trace: &Trace,
    limiter: LimiterBuilder,
    time: &Time,
    manner: Manner,
) -> Result<(), String> {
    let limiter = limiter.build().map_err(|error| error.to_string())?;
    let key = Key::new(&trace.name);
    let mut charged: Vec<Charged> = Vec::new();
    for (step, op) in trace.ops.iter().enumerate() {
        time.set(op["at_us"].as_i64().expect("at_us"));
        let runner = Runner {
            trace,
            limiter: &limiter,
            key,
            op,
            given_later: given_later(trace, step),
        };
        let outcome = runner.step(manner, &charged).await;
        charged.push(outcome.map_err(|problem| format!("op {step} {op}: {problem}"))?);
        runner
            .afterwards(&runner.peek().await)
            .map_err(|problem| format!("after op {step} {op}: {problem}"))?;
    }
    Ok(())
}

/// Whether the units of this operation are refunded as a whole: n receipts of one unit each drain one by one, where one
/// receipt of n drains n times as long, so that those that are admitted are charged as one request.
fn given_later(trace: &Trace, step: usize) -> bool {
    let gives = trace.ops.iter().filter(|op| op["op"] == "give");
    gives.into_iter().any(|op| op["of"] == step)
}

struct Runner<'a> {
    trace: &'a Trace,
    limiter: &'a Limiter,
    key: Key,
    op: &'a Value,
    given_later: bool,
}

impl Runner<'_> {
    async fn step(&self, manner: Manner, charged: &[Charged]) -> Result<Charged, String> {
        match self.op["op"].as_str().expect("op") {
            "take" => self.take(manner).await,
            "give" => {
                let of = self.op["of"].as_u64().expect("of") as usize;
                self.give(&charged[of]).await.map(|()| Vec::new())
            }
            "force" => {
                let units = self.op["units"].as_u64().expect("units");
                Ok(vec![Ok(charge(self.limiter, self.key, units).await)])
            }
            "reset" => {
                let _ = self.limiter.reset(self.key).await.expect("a response");
                Ok(Vec::new())
            }
            "block" | "prolong" | "unblock" => {
                self.block().await;
                Ok(Vec::new())
            }
            "peek" => Ok(Vec::new()),
            other => Err(format!("an unknown operation {other}")),
        }
    }

    fn costs(&self) -> Vec<u64> {
        let one = |cost: &Value| cost.as_u64().unwrap_or(1);
        match &self.op["costs"] {
            Value::Array(costs) => costs.iter().map(one).collect(),
            _ => vec![one(&self.op["cost"]); self.trace.policies.len()],
        }
    }

    fn ask<T>(&self, check: Check<T>) -> Check<T> {
        self.ask_for(1, check)
    }

    /// Of `n` requests at once.
    fn ask_for<T>(&self, n: u64, check: Check<T>) -> Check<T> {
        let costs = self.costs().into_iter().enumerate();
        costs.fold(check, |check, (i, cost)| {
            check.cost_for(format!("p{i}"), n * cost)
        })
    }

    async fn peek(&self) -> LimitStatus {
        let peek = self.ask(self.limiter.peek(self.key)).await;
        peek.expect("a response")
    }

    async fn take(&self, manner: Manner) -> Result<Charged, String> {
        let n = self.op["n"].as_u64().unwrap_or(1);
        let expected = self.op["admitted"].as_u64().expect("admitted");
        let admit = || self.ask(self.limiter.admit(self.key));
        let mut results = Vec::new();
        // As one request.
        let merged = if self.given_later { expected } else { 0 };
        if merged > 0 {
            let all = self.ask_for(merged, self.limiter.admit(self.key));
            let all = all.await.map_err(|rejected| rejected.to_string())?;
            results.push(Ok(all));
        }
        let admitted_singly = expected - merged;
        if manner == Manner::Singly || self.given_later {
            for _ in merged..n {
                results.push(admit().await);
                // The clock stands still: after two rejections all others would be rejected, too.
                if let [.., Err(_), Err(_)] = &results[..] {
                    break;
                }
            }
        } else {
            let tasks: Vec<_> = (0..n)
                .map(|_| tokio::spawn(admit().into_future()))
                .collect();
            for task in tasks {
                results.push(task.await.map_err(|error| error.to_string())?);
            }
        }
        let decisions: Vec<_> = results.iter().map(Decided::decision).collect();
        let singly = &decisions[usize::from(merged > 0)..];
        let admitted: u64 = singly.iter().map(Decision::admitted).sum();
        if admitted != admitted_singly {
            return Err(format!("{admitted} admitted in place of {admitted_singly}"));
        }
        // Cached rejections are equal to those of the store.
        let counted = |decision: &Decision| {
            matches!(
                decision.source(),
                DecisionSource::Store | DecisionSource::RejectionCache
            )
        };
        if !decisions.iter().all(counted) {
            return Err(format!("not from the store: {decisions:?}"));
        }
        self.compare_each(singly)?;
        Ok(results)
    }

    /// First come, first served: the i-th of k sees what is left after it.
    fn compare_each(&self, decisions: &[Decision]) -> Result<(), String> {
        let mut admitted: Vec<_> = decisions.iter().filter(|d| d.admitted() == 1).collect();
        let left = |decision: &Decision| {
            let policies = decision.policies().zip(self.costs());
            let costing = policies.filter(|(_, cost)| *cost > 0);
            costing.map(|(policy, _)| policy.remaining()).sum::<u64>()
        };
        // They were sent at once; their results show their order.
        admitted.sort_by_key(|decision| std::cmp::Reverse(left(decision)));
        for (i, decision) in admitted.iter().enumerate() {
            self.compare(
                &decision.policies().collect::<Vec<_>>(),
                (admitted.len() - 1 - i) as u64,
            )
            .map_err(|problem| format!("request {i}: {problem}"))?;
        }
        Ok(())
    }

    async fn give(&self, charged: &[Result<Admission, Rejected>]) -> Result<(), String> {
        let units = self.op["units"].as_u64().expect("units");
        let mut given = vec![0; self.trace.policies.len()];
        if let [Ok(admission), ..] = charged {
            let refunds = admission.refund(units).await;
            let refunds = refunds.map_err(|error| error.to_string())?;
            let decision = admission.decision();
            let named = refunds.iter().map(Refund::policy);
            let policies = decision.policies().map(|verdict| verdict.policy());
            if !named.eq(policies) {
                return Err(format!("{refunds:?} of {decision:?}"));
            }
            let counted = refunds.iter().take(given.len());
            given = counted.map(Refund::units).collect();
        }
        let expected: Vec<_> = match &self.op["given"] {
            Value::Array(given) => given.iter().filter_map(Value::as_u64).collect(),
            given => vec![given.as_u64().expect("given")],
        };
        if given != expected {
            return Err(format!("{given:?} given back in place of {expected:?}"));
        }
        Ok(())
    }

    async fn block(&self) {
        let (limiter, key) = (self.limiter, self.key);
        let time = Duration::from_micros(self.op["time_us"].as_u64().unwrap_or_default());
        match self.op["op"].as_str() {
            Some("block") => limiter.block(key, time).await.expect("a response"),
            Some("prolong") => limiter.prolong_block(key, time).await.expect("a response"),
            _ => drop(limiter.unblock(key).await.expect("a response")),
        }
    }

    /// The state after the operation.
    fn afterwards(&self, status: &LimitStatus) -> Result<(), String> {
        if self.trace.blocks {
            let block = status.policy("blocked").expect("the block list");
            wait_is(micros(block.retry_after()), &self.op["blocked_us"])?;
        }
        if self.op["op"] != "reset" {
            return self.compare(&status.policies().collect::<Vec<_>>(), 0);
        }
        // The model leaves these results out: the state is the initial one.
        let mut policies = status.policies();
        match policies.all(|v| v.remaining() == v.limit() && v.reset_after().is_zero()) {
            true => Ok(()),
            false => Err(format!("not as at the beginning: {status:?}")),
        }
    }

    /// Compares the policy decisions with the model's, for a request after which `later` equal ones were admitted.
    fn compare(&self, policies: &[PolicyDecision<'_>], later: u64) -> Result<(), String> {
        let costs = self.costs();
        let others = ["unleased", "blocked"];
        let policies = policies.iter();
        let policies = policies.filter(|policy| !others.contains(&policy.policy()));
        let policies: Vec<_> = policies.collect();
        for (i, policy) in policies.iter().enumerate() {
            let expected = match self.trace.composite {
                true => &self.op["policies"][i],
                false => self.op,
            };
            verdict_is(policy, expected, later * costs[i])
                .map_err(|problem| format!("p{i} {policy:?}: {problem}, in place of {expected}"))?;
        }
        if policies.len() != self.trace.policies.len() {
            return Err(format!("not one verdict per policy: {policies:?}"));
        }
        if later == 0 && self.trace.composite {
            let waits = policies.iter().map(|policy| micros(policy.retry_after()));
            let longest = waits.max_by_key(|wait| wait.unwrap_or(u64::MAX)).flatten();
            wait_is(longest, &self.op["retry_after_us"])?;
        }
        Ok(())
    }
}

fn verdict_is(policy: &PolicyDecision<'_>, expected: &Value, more: u64) -> Result<(), String> {
    let remaining = expected["remaining"].as_u64().expect("remaining") + more;
    let tie = u64::from(expected["tie"] == true);
    if policy.remaining() > remaining || policy.remaining() + tie < remaining {
        return Err(format!("{} left, not {remaining}", policy.remaining()));
    }
    if expected["limit"]
        .as_u64()
        .is_some_and(|limit| policy.limit() != limit)
    {
        return Err(format!(
            "a limit of {}, not {}",
            policy.limit(),
            expected["limit"]
        ));
    }
    if more > 0 {
        return Ok(());
    }
    wait_is(micros(policy.retry_after()), &expected["retry_after_us"])?;
    let reset = policy.reset_after().as_micros() as u64;
    wait_is(Some(reset), &expected["reset_after_us"])
}

fn micros(retry: RetryAfter) -> Option<u64> {
    match retry {
        RetryAfter::Now => Some(0),
        RetryAfter::In(wait) => Some(wait.as_micros() as u64),
        RetryAfter::Unknown | RetryAfter::Never => None,
    }
}

/// Never earlier than the model's, and at most 2 ms later, or one part in 10,000 where that is more.
fn wait_is(wait: Option<u64>, expected: &Value) -> Result<(), String> {
    match (wait, expected.as_u64()) {
        (None, None) => Ok(()),
        (Some(wait), Some(least))
            if wait >= least && wait <= least + (least / 10_000).max(2_000) =>
        {
            Ok(())
        }
        _ => Err(format!("a wait of {wait:?} µs, not {expected}")),
    }
}
