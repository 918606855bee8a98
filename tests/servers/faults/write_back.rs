//! What was admitted in process is charged on Redis when it is back, once, if so configured.

use crate::faults::support::*;

fn limiter(store: RedisStore, policy: Policy, write_back: bool) -> Limiter {
    let fallback = LocalFallback::shared_by(2).write_back(write_back);
    under(policy, store, fallback)
}

async fn used(limiter: &Limiter) -> u64 {
    used_on_the_store(limiter, KEY).await
}

#[tokio::test]
async fn local_charges_are_not_written_back_unless_configured() {
    let (_server, network) = network();
    let limiter = limiter(through(&network), policy(100), false);
    assert!(admitted_by_store(&limiter.check(KEY).cost(3).await));
    network.cut();
    opened_in_process(&limiter).await;
    assert!(limiter.check(KEY).cost(4).await.is_admitted());
    network.pass();
    for _ in 0..5 {
        resumed(&limiter).await;
    }
    assert_eq!(used(&limiter).await, 3);
}

/// Every strategy that counts a rate, and its limiter on a store of its own.
fn all(network: &Proxy, units: u64) -> impl Iterator<Item = (Policy, Limiter)> {
    let policies = every(units).into_iter();
    policies.map(|policy| (policy.clone(), limiter(through(network), policy, true)))
}

#[tokio::test]
async fn a_process_admits_its_share_once_however_often_the_store_fails() {
    let (_server, network) = network();
    let limiters: Vec<_> = all(&network, 100).collect();
    let mut admitted = vec![0; limiters.len()];
    for outage in 0..6 {
        network.cut();
        for (admitted, (_, limiter)) in admitted.iter_mut().zip(&limiters) {
            opened_in_process(limiter).await;
            // Some of them before the last outage, too many in the end.
            *admitted += admitted_in_process(limiter, KEY, 15 + 10 * outage).await;
        }
        network.pass();
        for (admitted, (_, limiter)) in admitted.iter().zip(&limiters) {
            resumed(limiter).await;
            let written_back = async || used(limiter).await >= *admitted.min(&100);
            until("it is written back", written_back).await;
        }
    }
    for (admitted, (policy, limiter)) in admitted.into_iter().zip(&limiters) {
        assert_eq!(admitted, 50, "{policy:?}");
        assert_eq!(used(limiter).await, 50, "{policy:?}: written back once");
        let decision = limiter.check(KEY).times(200).await;
        assert_eq!(decision.source(), DecisionSource::Store);
        assert_eq!(decision.admitted(), 50, "{policy:?}");
    }
}

#[tokio::test]
async fn charges_of_each_outage_that_are_refunded_before_are_not_written_back() {
    let (_server, network) = network();
    for (policy, limiter) in all(&network, 100) {
        for (cost, back, total) in [(9, 5, 4), (8, 6, 6)] {
            network.cut();
            opened_in_process(&limiter).await;
            let mut decision = limiter.check(KEY).cost(cost).await;
            let refunds = decision.refund(back).await.expect("units");
            assert_eq!(refunds[0].units(), back);
            network.pass();
            flushed(&limiter).await;
            // A later refund finds nothing in process, and leaves the count on Redis alone.
            decision.refund(cost - back).await.expect("a response");
            assert_eq!(used(&limiter).await, total, "{policy:?}");
        }
        let _ = limiter.reset(KEY).await.expect("a response");
    }
}

#[tokio::test]
async fn settlements_in_process_after_the_outage_are_written_back_too() {
    let (_server, network) = network();
    let policy = policy(100).strategy(FixedWindow);
    let limiter = limiter(through(&network), policy, true);
    network.cut();
    opened_in_process(&limiter).await;
    let admission = limiter.check(KEY).await.into_result().expect("room");
    network.pass();
    flushed(&limiter).await;
    assert_eq!(used(&limiter).await, 1);
    let handle = admission.policy("p").expect("a policy");
    handle.settle(30).await.expect("a response");
    flushed(&limiter).await;
    assert_eq!(used(&limiter).await, 30);
}

/// The share is 50.
#[tokio::test]
async fn a_debt_in_process_is_written_back_too() {
    let (_server, network) = network();
    for (policy, limiter) in all(&network, 100) {
        network.cut();
        opened_in_process(&limiter).await;
        let admission = limiter.check(KEY).await.into_result().expect("room");
        let handle = admission.policy("p").expect("a policy");
        handle.settle(80).await.expect("a response");
        network.pass();
        flushed(&limiter).await;
        assert_eq!(used(&limiter).await, 80, "{policy:?}");
        let _ = limiter.reset(KEY).await.expect("a response");
    }
}

#[tokio::test]
async fn charges_that_were_reset_are_not_written_back_by_a_policy_that_has_no_share_any_more() {
    let (_server, network) = network();
    let limiter = limiter(through(&network), policy(100), true);
    network.cut();
    opened_in_process(&limiter).await;
    assert!(limiter.check(KEY).cost(9).await.is_admitted());
    let rejecting = Limiter::builder().policy(policy(100));
    let rejecting = rejecting.on_store_error(OnStoreError::Reject);
    limiter.reconfigure(rejecting).expect("valid policies");
    network.pass();
    let is_reset = async || limiter.reset(KEY).await.is_ok();
    until("the store replies", is_reset).await;
    flushed(&limiter).await;
    assert_eq!(used(&limiter).await, 0);
}

#[tokio::test]
async fn charges_that_were_reset_are_not_written_back() {
    let (_server, network) = network();
    let tier = quota(1_000);
    for own_quota in [None, Some(tier)] {
        let ban = Ban::for_duration(secs(600));
        let limiter = Limiter::builder()
            .store(through(&network))
            .policy(policy(100).strategy(FixedWindow).tier_quotas([tier]))
            .policy(Policy::new("ban", Quota::requests(6).per_hour()).strategy(ban))
            .on_store_error(LocalFallback::shared_by(2).write_back(true))
            .built();
        network.cut();
        opened_in_process(&limiter).await;
        let mut check = limiter.check(KEY).cost(9);
        if let Some(quota) = own_quota {
            check = check.quota_for("p", quota);
        }
        assert!(check.await.is_admitted());
        network.pass();
        // Bans are lifted without a decision, with which charges would be written back.
        let replies = async || limiter.unblock(Key::new("other")).await.is_ok();
        until("the store replies", replies).await;
        let reset = limiter.reset(KEY).await.expect("a response");
        assert_eq!(reset.source(), DecisionSource::Store);
        for _ in 0..5 {
            resumed(&limiter).await;
        }
        assert_eq!(used(&limiter).await, 0, "under {own_quota:?}");
    }
}

#[tokio::test]
async fn charges_of_a_tier_are_written_back_to_the_tier() {
    let (_server, network) = network();
    let policy = policy(100).strategy(Gcra);
    let limiter = limiter(through(&network), policy, true);
    network.cut();
    opened_in_process(&limiter).await;
    let tier = quota(1_000);
    for _ in 0..30 {
        let decision = limiter.check(KEY).cost(10).quota_for("p", tier).await;
        assert!(decision.is_admitted());
    }
    network.pass();
    flushed(&limiter).await;
    let seen = limiter.peek(KEY).quota_for("p", tier).await;
    assert_eq!(seen.expect("a response").left("p"), 700);
    // Three tenths of a month, under the policy's own quota too.
    assert_eq!(used(&limiter).await, 30);
    // A unit of the policy's own quota is ten of the tier.
    network.cut();
    opened_in_process(&limiter).await;
    for quota in [quota(100), tier] {
        let decision = limiter.check(KEY).cost(4).quota_for("p", quota).await;
        assert!(decision.is_admitted());
    }
    network.pass();
    flushed(&limiter).await;
    let seen = limiter.peek(KEY).quota_for("p", tier).await;
    assert_eq!(seen.expect("a response").left("p"), 700 - 44);
}

/// The last quota has the longest window, which the others would end.
#[tokio::test]
async fn charges_before_a_reload_are_written_back_under_the_policys_last_quota() {
    let (server, network) = network();
    let per = |period| Policy::new("p", Quota::requests(100).per(period)).strategy(FixedWindow);
    let limiter = limiter(through(&network), per(secs(3_600)), true);
    network.cut();
    opened_in_process(&limiter).await;
    assert!(limiter.check(KEY).cost(5).await.is_admitted());
    let fallback = LocalFallback::shared_by(2).write_back(true);
    for period in [secs(7_200), secs(86_400)] {
        let reloaded = Limiter::builder().policy(per(period));
        let reloaded = reloaded.on_store_error(fallback);
        limiter.reconfigure(reloaded).expect("valid policies");
        assert!(limiter.check(KEY).cost(7).await.is_admitted());
    }
    network.pass();
    flushed(&limiter).await;
    assert_eq!(used(&limiter).await, 19);
    let keys = server.keys();
    let key = keys.iter().find(|key| key.starts_with("tg:f1:p:"));
    let ttl = server.command(&["PTTL", key.expect("a count")]).int();
    assert!(ttl > 7_200_000, "{ttl} ms");
}

#[tokio::test]
async fn permits_and_bans_are_not_written_back() {
    let (server, network) = network();
    let ban = Ban::for_duration(secs(600));
    let limiter = Limiter::builder()
        .store(through(&network))
        .policy(policy(8).strategy(FixedWindow))
        .policy(Policy::new("places", Quota::concurrent(8)))
        .policy(Policy::new("ban", Quota::requests(6).per_hour()).strategy(ban))
        .on_store_error(LocalFallback::shared_by(2).write_back(true))
        .built();
    network.cut();
    opened_in_process(&limiter).await;
    let key = Key::new("key");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(limiter.check(key).await.into_result().expect("a permit"));
    }
    // Two rejections, one less than the ban's share allows.
    for _ in 0..2 {
        assert!(!limiter.check(key).await.is_admitted());
    }
    network.pass();
    flushed(&limiter).await;
    let seen = limiter.peek(key).await.expect("a response");
    assert_eq!([seen.left("p"), seen.left("places")], [4, 8]);
    let keys = server.keys();
    assert_eq!(keys.len(), 1, "the rate's alone: {keys:?}");
}

/// Two episodes, of which each has more keys than are noted.
#[tokio::test]
async fn charges_of_many_keys_are_written_back_and_dropped_ones_counted_and_logged_once_an_outage()
{
    let (log, _guard) = Log::of_warnings();
    let (server, network) = network();
    let policy = policy(100).strategy(FixedWindow);
    let limiter = limiter(through(&network), policy, true);
    assert_eq!(limiter.health_check().await.dropped_write_backs(), 0);
    for episode in 1..=2 {
        let key = |key: u64| Key::new(format!("{episode}-{key}"));
        network.cut();
        opened_in_process(&limiter).await;
        for many in 0..10_007 {
            assert!(limiter.check(key(many)).await.is_admitted());
        }
        let health = limiter.health_check().await;
        assert_eq!(health.dropped_write_backs(), 7 * episode);
        assert_eq!(log.lines("write-backs dropped").len(), episode as usize);
        network.pass();
        flushed(&limiter).await;
        let written_back = server.keys().into_iter();
        let written_back = written_back.filter(|key| key.contains(&format!(":{episode}-")));
        assert_eq!(written_back.count(), 10_000);
        assert_eq!(used_on_the_store(&limiter, key(5_000)).await, 1);
    }
}
