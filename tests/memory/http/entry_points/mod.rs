//! What applies at each entry point of a limiter: one table of all of them, by column.
//!
//! | column | here | elsewhere |
//! |---|---|---|
//! | access lists | [`decisions`] | `access_lists.rs`, `redis/outgoing/access_lists.rs`, `redis/charging/calls.rs`, `redis/admin/changes.rs` |
//! | conditions of the limiter and of policies | [`decisions`] | `conditions.rs`, `skip.rs`, `calls_with_request.rs` |
//! | cost, quota and key of the request | [`closures`] | `calls_with_request.rs`, `peek_request.rs` |
//! | bans | [`decisions`], [`waits`] | `redis/charging/bans.rs`, `redis/outgoing/bans.rs` |
//! | a request without a key | [`decisions`] | `missing_keys.rs` |
//! | misuse | [`closures`] | `calls.rs`, `calls_with_request.rs` |
//! | a failed store | [`decisions`], [`waits`] | `call_errors.rs`, `redis/outgoing/rejections.rs` |
//!
//! That explanations equal decisions is tested in `redis/explain`; the status of a key by the admin API in `redis/admin/changes.rs`.

mod closures;
mod decisions;
mod waits;

use crate::http::{support, support::*};
use tollgate::limiter::{Check, LimitStatus};

/// The key of every request and call.
const KEY: &str = "alice";

/// A way into a limiter. Calls are about the policy `p`; a block is about the block list `blocked`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Layer,
    Check,
    Admit,
    Wait,
    Peek,
    PeekRequest,
    Credit,
    Charge,
    Reset,
    Block,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// Admitted or done, with the policy `p`.
    Counted,
    /// Admitted, without the policy `p`.
    Uncounted,
    Rejected,
    Denied,
    NoKey,
    StoreFailed,
    Invalid,
}

/// The settings of a call.
#[derive(Clone, Copy, PartialEq)]
enum Settings {
    None,
    /// The cost, and the quotas of the policies `p` and `q`.
    All,
    /// The quota of a policy that there is not.
    Mistake,
}

impl Settings {
    fn quotas(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::All => &["p", "q"],
            Self::Mistake => &["nobody"],
        }
    }

    fn of<T>(self, check: Check<T>) -> Check<T> {
        let check = match self {
            Self::All => check.cost(3),
            _ => check,
        };
        let quotas = self.quotas().iter();
        quotas.fold(check, |check, name| check.quota_for(*name, hourly(50)))
    }
}

impl Entry {
    const ALL: [Self; 10] = [
        Self::Layer,
        Self::Check,
        Self::Admit,
        Self::Wait,
        Self::Peek,
        Self::PeekRequest,
        Self::Credit,
        Self::Charge,
        Self::Reset,
        Self::Block,
    ];

    const CALLS_OF_REQUESTS: [Self; 4] = [Self::Check, Self::Admit, Self::Wait, Self::Peek];

    /// Makes a call about a request.
    async fn call(self, limiter: &Limiter, parts: &Parts, set: Settings) -> Outcome {
        match self {
            Self::Layer => by_layer(limiter, parts).await,
            Self::Check => of_decision(&set.of(limiter.check(KEY)).parts(parts).await),
            Self::Admit => of_admission(set.of(limiter.admit(KEY)).parts(parts).await),
            Self::Wait => {
                let wait = limiter.wait(KEY, Duration::ZERO).parts(parts);
                let wait = match set {
                    Settings::All => wait.cost(3),
                    _ => wait,
                };
                let quotas = set.quotas().iter();
                of_admission(
                    quotas
                        .fold(wait, |wait, name| wait.quota_for(*name, hourly(50)))
                        .await,
                )
            }
            Self::Peek => of_status(&set.of(limiter.peek(KEY)).parts(parts).await),
            Self::PeekRequest => of_status(&set.of(limiter.peek_request(parts)).await),
            Self::Credit => {
                let p = limiter.policy("p").expect("a policy");
                let quotas = set.quotas().iter();
                let credit = p.credit(KEY, 1).parts(parts);
                let credit = quotas.fold(credit, |all, name| all.quota_for(*name, hourly(50)));
                of_status(&credit.await.map(|credited| credited.status().clone()))
            }
            Self::Charge => of_status(&set.of(limiter.charge(KEY, 1)).parts(parts).await),
            Self::Reset => of_status(&set.of(limiter.reset(KEY)).parts(parts).await),
            Self::Block => match limiter.block(("blocked", KEY), secs(60)).await {
                Ok(()) => Outcome::Counted,
                Err(error) => of_error(&error),
            },
        }
    }
}

fn hourly(requests: u64) -> Quota {
    Quota::requests(requests).per_hour()
}

/// The head of a request with the key.
fn head(path: &str) -> Parts {
    support::head(Request::get(path).header("x-key", KEY))
}

async fn by_layer(limiter: &Limiter, parts: &Parts) -> Outcome {
    let app = hello(&RateLimitLayer::new(limiter.clone()));
    let request = Request::from_parts(parts.clone(), Body::empty());
    let response = send(&app, request).await;
    match response.status.as_u16() {
        429 => Outcome::Rejected,
        403 => Outcome::Denied,
        400 => Outcome::NoKey,
        503 => Outcome::StoreFailed,
        // There is one route alone; what the limiter admits elsewhere is not found.
        200 | 404 if response.field("ratelimit-policy").contains("\"p\"") => Outcome::Counted,
        200 | 404 => Outcome::Uncounted,
        other => panic!("{other}"),
    }
}

fn of_admission(result: Result<Admission, Rejected>) -> Outcome {
    match result {
        Ok(admission) => of_decision(&admission.decisions()[0]),
        Err(rejected) => of_decision(rejected.decision()),
    }
}

fn of_decision(decision: &Decision) -> Outcome {
    outcome(decision.kind(), decision.policy("p").is_some())
}

fn of_status(status: &Result<LimitStatus, CallError>) -> Outcome {
    match status {
        Ok(status) => outcome(status.kind(), status.policy("p").is_some()),
        Err(error) => of_error(error),
    }
}

fn of_error(error: &CallError) -> Outcome {
    match error {
        CallError::Store(_) => Outcome::StoreFailed,
        _ => Outcome::Invalid,
    }
}

fn outcome(kind: &DecisionKind, is_counted: bool) -> Outcome {
    match kind {
        DecisionKind::Admitted if is_counted => Outcome::Counted,
        DecisionKind::Admitted => Outcome::Uncounted,
        DecisionKind::Rejected => Outcome::Rejected,
        DecisionKind::DenyListed => Outcome::Denied,
        DecisionKind::MissingKey { .. } => Outcome::NoKey,
        DecisionKind::StoreFailed(_) => Outcome::StoreFailed,
        _ => Outcome::Invalid,
    }
}
