//! What applies at each entry point of a limiter: access lists, conditions, bans, missing keys and failed stores. One table of entry
//! points for each.

use Entry::{Admit, Block, Charge, Check, Credit, Explain, Layer, Peek, Reset, Wait};
use Outcome::{Counted, Denied, NoKey, Rejected, StoreFailed, Uncounted};
use tollgate::{explain::Explanation, limiter::LimitStatus};

use crate::http::{support, support::*};

/// The key of every request and call.
const KEY: &str = "alice";

const HOUR: Duration = secs(3_600);

/// A way into a limiter. Calls are about the policy `p`; a block is about the block list `blocked`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Layer,
    Check,
    Admit,
    Wait,
    Peek,
    Explain,
    Credit,
    Charge,
    Reset,
    Block,
}

const ALL: [Entry; 10] = [
    Layer, Check, Admit, Wait, Peek, Explain, Credit, Charge, Reset, Block,
];

/// Calls about requests, and calls of operators.
const REQUESTS: [Entry; 6] = [Layer, Check, Admit, Wait, Peek, Explain];
const OPERATORS: [Entry; 4] = [Credit, Charge, Reset, Block];

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
}

impl Entry {
    /// Makes a call about a request, of this cost where it may be set.
    async fn call(self, limiter: &Limiter, parts: &Parts, cost: u64) -> Outcome {
        match self {
            Layer => by_layer(limiter, parts).await,
            Check => of_decision(&limiter.check(KEY).parts(parts).cost(cost).await),
            Admit => of_admission(limiter.admit(KEY).parts(parts).cost(cost).await),
            Wait => {
                let wait = limiter.wait(KEY, Duration::ZERO).parts(parts);
                of_admission(wait.cost(cost).await)
            }
            Peek => of_status(&limiter.peek(KEY).parts(parts).await),
            Explain => of_explanation(&limiter.explain(parts).await),
            Credit => {
                let credit = limiter.policy("p").expect("a policy").credit(KEY, 1);
                let credited = credit.parts(parts).await;
                of_status(&credited.map(|credited| credited.status().clone()))
            }
            Charge => of_status(&limiter.charge(KEY, 1).parts(parts).await),
            Reset => of_status(&limiter.reset(KEY).parts(parts).await),
            Block => match limiter.block(("blocked", KEY), secs(60)).await {
                Ok(()) => Counted,
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
        429 => Rejected,
        403 => Denied,
        400 => NoKey,
        503 => StoreFailed,
        // There is one route alone; what the limiter admits elsewhere is not found.
        200 | 404 if response.field("ratelimit-policy").contains("\"p\"") => Counted,
        200 | 404 => Uncounted,
        other => panic!("{other}"),
    }
}

fn of_admission(result: Result<Admission, tollgate::Rejected>) -> Outcome {
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

fn of_explanation(explanation: &Result<Explanation, CallError>) -> Outcome {
    match explanation {
        Ok(explanation) => {
            let p = explanation.policy("p").expect("a policy");
            outcome(explanation.kind(), p.status().is_some())
        }
        Err(error) => of_error(error),
    }
}

fn of_error(error: &CallError) -> Outcome {
    match error {
        CallError::Store(_) => StoreFailed,
        other => panic!("{other}"),
    }
}

fn outcome(kind: &DecisionKind, is_counted: bool) -> Outcome {
    match kind {
        DecisionKind::Admitted if is_counted => Counted,
        DecisionKind::Admitted => Uncounted,
        DecisionKind::Rejected => Rejected,
        DecisionKind::DenyListed => Denied,
        DecisionKind::MissingKey { .. } => NoKey,
        DecisionKind::StoreFailed(_) => StoreFailed,
        other => panic!("{other:?}"),
    }
}

fn by_header(policy: Policy) -> Policy {
    policy.key(extract::header("x-key").readable())
}

/// A policy `p`, and a block list.
fn builder(p: Policy) -> LimiterBuilder {
    let blocked = by_header(Policy::block_list("blocked"));
    Limiter::builder().policy(by_header(p)).policy(blocked)
}

async fn call(entry: Entry, builder: LimiterBuilder, parts: &Parts) -> Outcome {
    entry.call(&builder.built(), parts, 1).await
}

#[tokio::test]
async fn lists_and_conditions_apply_to_requests_and_not_to_calls_of_operators() {
    let p = || Policy::new("p", hourly(9));
    let list = || KeyList::new("p", [Key::new(KEY)]);
    for (entries, denied, allowed, free, free_of_p) in [
        (&REQUESTS[..], Denied, Uncounted, Uncounted, Uncounted),
        (&OPERATORS, Counted, Counted, Counted, Counted),
    ] {
        for entry in entries {
            for (builder, expected) in [
                (builder(p()).deny(list()), denied),
                (builder(p()).allow(list()), allowed),
                (builder(p()).skip_path("/free"), free),
                (builder(p().skip_path("/free")), free_of_p),
            ] {
                let text = format!("{entry:?} {builder:?}");
                let outcome = call(*entry, builder, &head("/free")).await;
                assert_eq!(outcome, expected, "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_decided_by_lists_first_and_calls_have_their_own() {
    let stranger = support::head(Request::get("/").header("x-other", KEY));
    for (entries, unlisted, denied) in [
        (&[Layer, Explain][..], NoKey, Denied),
        (&[Check, Admit, Wait, Peek], Counted, Denied),
        (&OPERATORS, Counted, Counted),
    ] {
        for entry in entries {
            let builder = || {
                let other =
                    Policy::new("other", hourly(9)).key(extract::header("x-other").readable());
                builder(Policy::new("p", hourly(9))).policy(other)
            };
            let list = KeyList::new("other", [Key::new(KEY)]);
            let outcome = call(*entry, builder(), &stranger).await;
            assert_eq!(outcome, unlisted, "{entry:?}");
            let outcome = call(*entry, builder().deny(list), &stranger).await;
            assert_eq!(outcome, denied, "{entry:?}");
        }
    }
}

/// Two requests an hour, and a ban of those that are rejected three times.
fn with_ban() -> Limiter {
    let ban = Policy::new("abuse", hourly(3));
    let ban = ban.strategy(Ban::for_duration(secs(600)));
    limiter([
        by_header(Policy::new("p", hourly(2))),
        by_header(ban),
        by_header(Policy::block_list("blocked")),
    ])
}

#[tokio::test]
async fn bans_count_rejected_requests_and_nothing_that_operators_do() {
    for (entries, outcome, rejections) in [
        (&[Layer, Check, Admit, Wait][..], Rejected, 1),
        (&[Peek, Explain, Charge], Rejected, 0),
        (&[Credit, Block], Counted, 0),
    ] {
        for entry in entries {
            let limiter = with_ban();
            // A rejection is one, whatever its cost.
            assert!(limiter.check(KEY).cost(2).await.is_admitted());
            let result = entry.call(&limiter, &head("/"), 2).await;
            assert_eq!(result, outcome, "{entry:?}");
            let counted = used(&limiter, "abuse", Key::new(KEY)).await;
            assert_eq!(counted, rejections, "{entry:?}");
        }
    }
    // A charge by hand counts under a ban that it names, and a reset clears it, named or not.
    let limiter = with_ban();
    let _ = limiter.charge(("abuse", KEY), 2).await.expect("a response");
    assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 2);
    let _ = limiter.reset(KEY).await.expect("a response");
    assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 0);
}

#[tokio::test]
async fn a_ban_rejects_requests_and_no_credit_or_charge() {
    for entry in ALL {
        let limiter = with_ban();
        let ban = limiter.block(("abuse", KEY), secs(600));
        ban.await.expect("a ban");
        let result = entry.call(&limiter, &head("/"), 1).await;
        // A reset returns the status before it.
        let is_free = matches!(entry, Credit | Charge | Block);
        let expected = if is_free { Counted } else { Rejected };
        assert_eq!(result, expected, "{entry:?}");
    }
}

#[tokio::test]
async fn a_failed_store_is_handled_as_configured_for_requests_and_returned_to_operators() {
    for entry in ALL {
        let [admits, rejects, local] = match entry {
            Layer | Check | Admit | Wait => [Uncounted, StoreFailed, Counted],
            _ => [StoreFailed; 3],
        };
        for (action, expected) in [
            (OnStoreError::Admit, admits),
            (OnStoreError::Reject, rejects),
            (LocalFallback::shared_by(1).into(), local),
        ] {
            let text = format!("{entry:?} {action:?}");
            let builder = builder(Policy::new("p", hourly(9)))
                .store(StubStore::failing(StoreError::timeout()))
                .on_store_error(action);
            assert_eq!(call(entry, builder, &head("/")).await, expected, "{text}");
        }
    }
}

#[tokio::test]
async fn a_reset_of_one_caller_leaves_out_policies_that_count_all_callers_together() {
    let all = || Policy::new("all", hourly(9)).key(extract::global());
    for (policies, left) in [
        (vec![by_header(Policy::new("p", hourly(9))), all()], 8),
        // Unless there is no other policy.
        (vec![all()], 9),
    ] {
        let limiter = limiter(policies);
        assert!(limiter.check(KEY).await.is_admitted());
        let _ = limiter.reset(KEY).await.expect("a response");
        let seen = limiter.peek(KEY).await.expect("a response");
        assert_eq!(seen.left("all"), left);
    }
}

#[tokio::test]
async fn a_final_rejection_that_the_store_cannot_count_stays_one() {
    for action in [
        OnStoreError::Admit,
        OnStoreError::Reject,
        LocalFallback::shared_by(1).into(),
    ] {
        let text = format!("{action:?}");
        // The store counts no rejection by hand.
        let store = StubStore::responding(|op| {
            (op == Op::Adjust).then(|| StoreResponse::Ready(Err(StoreError::timeout())))
        });
        let abuse = Policy::new("abuse", hourly(1)).strategy(Ban::for_duration(HOUR));
        let builder = Limiter::builder().store(store).on_store_error(action);
        let limiter = stores::limiter(builder, [Policy::new("p", hourly(1)), abuse]);
        let _ = limiter.wait(KEY, Duration::ZERO).await.expect("the first");
        let rejected = limiter.wait(KEY, Duration::ZERO).await;
        let rejected = rejected.expect_err("no time");
        assert_eq!(rejected.status(), 429, "{text}");
        let policies = rejected.decision().policies().filter(|own| own.rejected());
        let names: Vec<_> = policies.map(|own| own.policy()).collect();
        assert_eq!(names, ["p"], "{text}");
        assert_eq!(used(&limiter, "p", Key::new(KEY)).await, 1, "{text}");
    }
}
