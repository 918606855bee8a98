//! Which lists, conditions and bans apply at each entry point, and what becomes of a missing key and of a failing store.

use super::{
    Entry::{self, Admit, Block, Charge, Check, Credit, Layer, Peek, PeekRequest, Reset, Wait},
    KEY,
    Outcome::{self, Counted, Denied, NoKey, Rejected, StoreFailed, Uncounted},
    Settings, head, hourly,
};
use crate::http::{support, support::*};

/// Calls about requests, and calls of operators.
const REQUESTS: [Entry; 5] = [Layer, Check, Admit, Wait, Peek];
const OPERATORS: [Entry; 4] = [Credit, Charge, Reset, Block];

fn by_header(policy: Policy) -> Policy {
    policy.key(extract::header("x-key").readable())
}

/// A policy `p`, and a block list.
fn builder(p: Policy) -> LimiterBuilder {
    let blocked = by_header(Policy::block_list("blocked"));
    Limiter::builder().policy(by_header(p)).policy(blocked)
}

async fn call(entry: Entry, builder: LimiterBuilder, parts: &Parts) -> Outcome {
    let limiter = builder.built();
    entry.call(&limiter, parts, Settings::None).await
}

#[tokio::test]
async fn lists_and_conditions_apply_to_requests_and_not_to_calls_of_operators() {
    let p = || Policy::new("p", hourly(9));
    let list = || KeyList::new("p", [Key::new(KEY)]);
    for (entries, denied, allowed, free, free_of_p) in [
        (&REQUESTS[..], Denied, Uncounted, Uncounted, Uncounted),
        // The status of a caller is asked for by a request which may itself be free.
        (&[PeekRequest], Denied, Uncounted, Counted, Counted),
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
async fn a_charge_of_a_listed_key_is_counted_and_a_reset_of_it_returns_all() {
    let list = || KeyList::new("p", [Key::new(KEY)]);
    let builder = || builder(Policy::new("p", hourly(9)));
    for builder in [builder().deny(list()), builder().allow(list())] {
        let limiter = builder.built();
        for left in [6, 3] {
            let charged = limiter.charge(KEY, 3).await.expect("a response");
            assert_eq!(charged.left("p"), left);
        }
        let stood = limiter.reset(KEY).await.expect("a response");
        assert_eq!(stood.left("p"), 3);
        let charged = limiter.charge(KEY, 1).await.expect("a response");
        assert_eq!(charged.left("p"), 8);
    }
}

#[tokio::test]
async fn a_request_without_a_key_is_decided_by_lists_first_and_calls_have_their_own() {
    let stranger = support::head(Request::get("/").header("x-other", KEY));
    for (entries, unlisted, denied) in [
        (&[Layer, PeekRequest][..], NoKey, Denied),
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
        (&[Peek, PeekRequest, Charge], Rejected, 0),
        (&[Credit, Block], Counted, 0),
    ] {
        for entry in entries {
            let limiter = with_ban();
            assert!(limiter.check(KEY).cost(2).await.is_admitted());
            let result = entry.call(&limiter, &head("/"), Settings::None).await;
            assert_eq!(result, outcome, "{entry:?}");
            let counted = used(&limiter, "abuse", Key::new(KEY)).await;
            assert_eq!(counted, rejections, "{entry:?}");
        }
    }
    // A rejection is one, whatever its cost.
    for entry in [Check, Admit, Wait] {
        let limiter = with_ban();
        assert!(limiter.check(KEY).cost(2).await.is_admitted());
        let is_admitted = match entry {
            Check => limiter.check(KEY).cost(2).await.is_admitted(),
            Admit => limiter.admit(KEY).cost(2).await.is_ok(),
            _ => limiter.wait(KEY, Duration::ZERO).cost(2).await.is_ok(),
        };
        assert!(!is_admitted, "{entry:?}");
        assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 1, "{entry:?}");
    }
    // A charge by hand counts under a ban that it names.
    let limiter = with_ban();
    let _ = limiter.charge(("abuse", KEY), 2).await.expect("a response");
    assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 2);
    // A reset clears it, named or not.
    let _ = limiter.reset(KEY).await.expect("a response");
    assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 0);
}

#[tokio::test]
async fn a_ban_rejects_requests_and_no_credit_or_charge() {
    for entry in Entry::ALL {
        let limiter = with_ban();
        let ban = limiter.block(("abuse", KEY), secs(600));
        ban.await.expect("a ban");
        let result = entry.call(&limiter, &head("/"), Settings::None).await;
        // A reset returns the status before it.
        let is_free = matches!(entry, Credit | Charge | Block);
        let expected = if is_free { Counted } else { Rejected };
        assert_eq!(result, expected, "{entry:?}");
    }
}

#[tokio::test]
async fn a_failed_store_is_handled_as_configured_for_requests_and_returned_to_operators() {
    for entry in Entry::ALL {
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
                .store(StubStore::failing(StoreError::Timeout))
                .on_store_error(action);
            assert_eq!(call(entry, builder, &head("/")).await, expected, "{text}");
        }
    }
}

#[tokio::test]
async fn operators_need_no_request_for_conditions_and_costs() {
    for policy in [
        Policy::new("p", hourly(9)).skip_path("/free"),
        Policy::new("p", hourly(9)).cost_with(|_| 2),
    ] {
        let limiter = builder(policy).built();
        let p = limiter.policy("p").expect("a policy");
        let charged = limiter.charge(KEY, 3).await.expect("a response");
        assert_eq!(charged.left("p"), 6);
        let credited = p.credit(KEY, 1).await.expect("a response");
        assert_eq!(credited.units(), 1);
        let stood = limiter.reset(KEY).await.expect("a response");
        assert_eq!(stood.left("p"), 7);
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
