//! Which lists, conditions and bans apply at each entry point, and what becomes of a missing key and of a failing store.

use super::{
    Entry, KEY,
    Outcome::{self, Counted, Denied, NoKey, Rejected, StoreFailed, Uncounted},
    Settings, head, hourly,
};
use crate::http::support::*;

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
    for (entry, denied, allowed, free, free_of_p) in [
        (Entry::Layer, Denied, Uncounted, Uncounted, Uncounted),
        (Entry::Check, Denied, Uncounted, Uncounted, Uncounted),
        (Entry::Admit, Denied, Uncounted, Uncounted, Uncounted),
        (Entry::Wait, Denied, Uncounted, Uncounted, Uncounted),
        (Entry::Peek, Denied, Uncounted, Uncounted, Uncounted),
        // The status of a caller is asked for by a request which may itself be free.
        (Entry::PeekRequest, Denied, Uncounted, Counted, Counted),
        (Entry::Credit, Counted, Counted, Counted, Counted),
        (Entry::Charge, Counted, Counted, Counted, Counted),
        (Entry::Reset, Counted, Counted, Counted, Counted),
        (Entry::Block, Counted, Counted, Counted, Counted),
    ] {
        for (builder, expected) in [
            (builder(p()).deny(list()), denied),
            (builder(p()).allow(list()), allowed),
            (builder(p()).skip_path("/free"), free),
            (builder(p().skip_path("/free")), free_of_p),
        ] {
            let text = format!("{entry:?} {builder:?}");
            let outcome = call(entry, builder, &head("/free")).await;
            assert_eq!(outcome, expected, "{text}");
        }
    }
}

#[tokio::test]
async fn a_charge_of_a_listed_key_is_counted_and_a_reset_of_it_returns_all() {
    for denies in [true, false] {
        let list = KeyList::new("p", [Key::new(KEY)]);
        let builder = builder(Policy::new("p", hourly(9)));
        let builder = match denies {
            true => builder.deny(list),
            false => builder.allow(list),
        };
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
    let mut stranger = head("/");
    stranger.headers.remove("x-key");
    stranger
        .headers
        .insert("x-other", KEY.parse().expect("a value"));
    for (entry, unlisted, denied) in [
        (Entry::Layer, NoKey, Denied),
        (Entry::Check, Counted, Denied),
        (Entry::Admit, Counted, Denied),
        (Entry::Wait, Counted, Denied),
        (Entry::Peek, Counted, Denied),
        (Entry::PeekRequest, NoKey, Denied),
        (Entry::Credit, Counted, Counted),
        (Entry::Charge, Counted, Counted),
        (Entry::Reset, Counted, Counted),
        (Entry::Block, Counted, Counted),
    ] {
        let builder = || {
            let other = Policy::new("other", hourly(9));
            builder(Policy::new("p", hourly(9)))
                .policy(other.key(extract::header("x-other").readable()))
        };
        let list = KeyList::new("other", [Key::new(KEY)]);
        let outcome = call(entry, builder(), &stranger).await;
        assert_eq!(outcome, unlisted, "{entry:?}");
        let outcome = call(entry, builder().deny(list), &stranger).await;
        assert_eq!(outcome, denied, "{entry:?}");
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
    for (entry, outcome, rejections) in [
        (Entry::Layer, Rejected, 1),
        (Entry::Check, Rejected, 1),
        (Entry::Admit, Rejected, 1),
        (Entry::Wait, Rejected, 1),
        (Entry::Peek, Rejected, 0),
        (Entry::PeekRequest, Rejected, 0),
        (Entry::Credit, Counted, 0),
        (Entry::Charge, Rejected, 0),
        (Entry::Block, Counted, 0),
    ] {
        let limiter = with_ban();
        assert!(limiter.check(KEY).cost(2).await.is_admitted());
        let result = entry.call(&limiter, &head("/"), Settings::None).await;
        assert_eq!(result, outcome, "{entry:?}");
        let counted = used(&limiter, "abuse", Key::new(KEY)).await;
        assert_eq!(counted, rejections, "{entry:?}");
    }
    // A rejection is one, whatever its cost.
    for entry in [Entry::Check, Entry::Admit, Entry::Wait] {
        let limiter = with_ban();
        assert!(limiter.check(KEY).cost(2).await.is_admitted());
        let call = match entry {
            Entry::Check => limiter.check(KEY).cost(2).await.is_admitted(),
            Entry::Admit => limiter.admit(KEY).cost(2).await.is_ok(),
            _ => limiter.wait(KEY, Duration::ZERO).cost(2).await.is_ok(),
        };
        assert!(!call, "{entry:?}");
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
    for (entry, outcome) in [
        (Entry::Layer, Rejected),
        (Entry::Check, Rejected),
        (Entry::Admit, Rejected),
        (Entry::Wait, Rejected),
        (Entry::Peek, Rejected),
        (Entry::PeekRequest, Rejected),
        (Entry::Credit, Counted),
        (Entry::Charge, Counted),
        // The status before the reset.
        (Entry::Reset, Rejected),
        (Entry::Block, Counted),
    ] {
        let limiter = with_ban();
        let ten_minutes = secs(600);
        limiter
            .block(("abuse", KEY), ten_minutes)
            .await
            .expect("a ban");
        let result = entry.call(&limiter, &head("/"), Settings::None).await;
        assert_eq!(result, outcome, "{entry:?}");
    }
}

#[tokio::test]
async fn a_failed_store_is_handled_as_configured_for_requests_and_returned_to_operators() {
    for (entry, admits, rejects, local) in [
        (Entry::Layer, Uncounted, StoreFailed, Counted),
        (Entry::Check, Uncounted, StoreFailed, Counted),
        (Entry::Admit, Uncounted, StoreFailed, Counted),
        (Entry::Wait, Uncounted, StoreFailed, Counted),
        (Entry::Peek, StoreFailed, StoreFailed, StoreFailed),
        (Entry::PeekRequest, StoreFailed, StoreFailed, StoreFailed),
        (Entry::Credit, StoreFailed, StoreFailed, StoreFailed),
        (Entry::Charge, StoreFailed, StoreFailed, StoreFailed),
        (Entry::Reset, StoreFailed, StoreFailed, StoreFailed),
        (Entry::Block, StoreFailed, StoreFailed, StoreFailed),
    ] {
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
