//! Requests whose keys are in several slots: never too much is admitted, and what is rejected leaves nothing behind.

use tokio::{runtime::Handle, task::yield_now, time::timeout};
use tollgate::limiter::{Keys, SettleError};

use crate::cluster::support::*;
use tollgate_tests::charges::refund_every;

fn three([a, b, c]: [(StrategyKind, &str); 3]) -> Limiter {
    let policies = [("a", a), ("b", b), ("c", c)];
    let policies = policies.map(|(name, (strategy, quota))| strategy.policy(name, quota));
    limiter(store(cluster()), policies)
}

/// What is used by each policy. What refills with time is refunded less the moment for which it was held: of a month's
/// quota far less than a unit, which shows as one.
#[track_caller]
fn all_used(used: &[u64], strategies: [StrategyKind; 3], each: u64) {
    for (used, strategy) in used.iter().zip(strategies) {
        let flows = strategy.is_even();
        assert!(
            *used == each || flows && *used == each + 1,
            "{strategies:?}: {used} and not {each}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_the_smallest_quota_is_admitted_and_no_charge_is_left_over() {
    for (round, strategy) in StrategyKind::ALL.into_iter().enumerate() {
        let master_keys = MasterKeys::find(cluster(), &format!("quiet{round}-")).await;
        let strategies = [
            strategy,
            StrategyKind::ALL[(round + 3) % StrategyKind::ALL.len()],
            Fixed,
        ];
        let [a, b, c] = strategies;
        let new = || three([(a, "200/month"), (b, "120/month"), (c, "160/month")]);
        let limiters = [new(), new()];
        let keys = master_keys.apart();
        let admitted = hammer(&limiters, keys.clone(), 64, 600).await;
        assert!(admitted <= 120, "{strategy:?}: {admitted}");
        let used_by_all = used(&limiters[0], keys.clone()).await;
        all_used(&used_by_all, strategies, admitted);
        // What was rejected in between has not been lost.
        for _ in admitted.min(119)..119 {
            assert!(admits(&limiters[1], keys.clone()).await, "{strategy:?}");
        }
        let mut last = 0;
        while admits(&limiters[0], keys.clone()).await {
            last += 1;
        }
        assert!(last <= 1, "{strategy:?}: {last} too many");
        let used_by_all = used(&limiters[0], keys).await;
        all_used(&used_by_all, strategies, admitted.max(119) + last);
    }
}

#[tokio::test]
async fn a_huge_cost_is_rejected_in_all_slots_and_a_huge_charge_is_a_debt_of_one_capacity() {
    let master_keys = MasterKeys::find(cluster(), "huge").await;
    let limiter = three([(Fixed, "5/h"), (Gcra, "5/h"), (List, "5/h")]);
    let keys = master_keys.apart();
    for cost in [1 << 52, 1 << 63, (1 << 63) + 1_000, u64::MAX - 7, u64::MAX] {
        let rejected = limiter.check(keys.clone()).cost(cost).times(cost).await;
        assert!(!admitted_by_store(&rejected), "{cost}");
        assert_eq!(rejected.retry_after(), RetryAfter::Never, "{cost}");
        assert_eq!(used(&limiter, keys.clone()).await, [0; 3], "{cost}");
        let charged = limiter.charge(keys.clone(), cost).await;
        assert!(admitted_by_store(&charged.expect("a response")), "{cost}");
        assert_eq!(used(&limiter, keys.clone()).await, [5; 3], "{cost}");
        assert!(!admits(&limiter, keys.clone()).await, "{cost}");
        let _ = limiter.reset(keys.clone()).await.expect("a response");
    }
    let free = limiter.check(keys).cost(0).times(u64::MAX).await;
    assert_eq!(free.admitted(), u64::from(u32::MAX));
}

#[tokio::test]
async fn a_charge_in_all_slots_is_refunded_in_all_slots() {
    for (round, strategy) in StrategyKind::ALL.into_iter().enumerate() {
        let master_keys = MasterKeys::find(cluster(), &format!("back{round}-")).await;
        let gcra = (Gcra, "8/month");
        let limiter = three([(strategy, "9/month"), gcra, (strategy, "7/month")]);
        let keys = master_keys.apart();
        let admission = limiter.admit(keys.clone()).cost(3).await.expect("admitted");
        assert_eq!(used(&limiter, keys.clone()).await, [3; 3], "{strategy:?}");
        refund_every(&admission, 2).await.expect("a refund");
        assert_eq!(used(&limiter, keys.clone()).await, [1; 3], "{strategy:?}");
        let _ = limiter.charge(keys.clone(), 4).await.expect("a response");
        assert_eq!(used(&limiter, keys.clone()).await, [5; 3], "{strategy:?}");
        let _ = limiter.reset(keys.clone()).await.expect("a response");
        assert_eq!(used(&limiter, keys).await, [0; 3], "{strategy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_before_its_result_costs_nothing_in_any_slot() {
    let master_keys = MasterKeys::find(cluster(), "leave").await;
    let limiter = three([Gcra, Log, List].map(|strategy| (strategy, "1000/month")));
    let keys = master_keys.apart();
    let tasks: Vec<_> = (0..400)
        .map(|client| {
            let check = limiter.check(keys.clone()).into_future();
            tokio::spawn(async move {
                if client % 2 == 0 {
                    return admitted_by_store(&check.await);
                }
                // Some are dropped right after they were sent.
                let patience = Duration::from_micros(client / 2 % 2 * client * 10);
                let decision = timeout(patience, check).await;
                decision.is_ok_and(|decision| admitted_by_store(&decision))
            })
        })
        .collect();
    let mut read = 0;
    for task in tasks {
        read += u64::from(task.await.expect("a response"));
    }
    assert!((200..400).contains(&read), "{read} were answered");
    until("unread charges are refunded", async || {
        let used = used(&limiter, keys.clone()).await;
        // What refills with time is refunded less the moments for which it was held, which show as one unit.
        used[1..] == [read; 2] && (read..=read + 1).contains(&used[0])
    })
    .await;
}

#[tokio::test]
async fn permits_are_held_and_released_in_all_slots() {
    let master_keys = MasterKeys::find(cluster(), "flight").await;
    let policies = [
        Policy::new("a", Quota::concurrent(2)).strategy(Concurrency::default()),
        Gcra.policy("b", "9/h"),
        Policy::new("c", Quota::concurrent(5)).strategy(Concurrency::default()),
    ];
    let limiter = limiter(store(cluster()), policies);
    let admit = || limiter.admit(master_keys.apart()).into_future();
    let held = join_all([admit(), admit()]).await;
    assert!(held.iter().all(admitted_by_store));
    assert!(!admits(&limiter, master_keys.apart()).await);
    assert_eq!(used(&limiter, master_keys.apart()).await, [2, 2, 2]);
    drop(held);
    let released = async || used(&limiter, master_keys.apart()).await == [0, 2, 0];
    until("all permits are released", released).await;
}

#[tokio::test]
async fn a_failure_in_one_slot_fails_the_request_and_refunds_the_other_slots() {
    let cluster = Cluster::start_with(3, 0, apart);
    let master_keys = MasterKeys::find(&cluster, "fails").await;
    let policies = ["a", "b", "c"].map(|name| Gcra.policy(name, "9/h"));
    let store = builder(cluster.urls()).runtime(Handle::current());
    let limiter = limiter(store.built(), policies);
    assert!(admits(&limiter, master_keys.apart()).await);
    let of_b = format!(":b:{}", master_keys.key(1).as_str());
    let [(foreign, 1)] = &keys(&cluster, &of_b)[..] else {
        panic!("a key of the second master");
    };
    cluster.nodes()[1]
        .command(&["SET", foreign, "something else", "EX", "3600"])
        .ok();
    let decision = limiter.check(master_keys.apart()).await;
    assert_eq!(store_error(&decision).code(), "corrupt_key");
    let others: Keys = [("a", master_keys.key(0)), ("c", master_keys.key(2))].into();
    let refunded = async || {
        let refunded = async || used(&limiter, others.clone()).await == [1, 1];
        until("the others are refunded", refunded).await;
    };
    refunded().await;

    cluster.nodes()[1].pause();
    // The replies of the other nodes are read before that to a later call.
    let time_out = async |time: &StillTime| {
        yield_now().await;
        used(&limiter, others.clone()).await;
        time.time_out().await;
    };
    let check = tokio::spawn(limiter.check(master_keys.apart()).into_future());
    let time = StillTime::new();
    time_out(&time).await;
    let decision = check.await.expect("a response");
    assert_eq!(store_error(&decision).code(), "timeout");
    time.end();
    refunded().await;
    // Unconditional operations are done in all slots or in none, too, also when one of the nodes is not called any
    // more.
    let time = StillTime::new();
    for _ in 0..6 {
        let charge = tokio::spawn(limiter.charge(master_keys.apart(), 2).into_future());
        time_out(&time).await;
        let charged = charge.await.expect("a response");
        assert!(charged.is_err(), "{charged:?}");
    }
    let decision = limiter.check(master_keys.apart()).await;
    let error = store_error(&decision);
    assert_eq!(error.code(), "circuit_open");
    time.end();
    refunded().await;
    cluster.nodes()[1].resume();
}

#[tokio::test]
async fn a_shadow_that_fails_in_a_slot_of_its_own_decides_nothing() {
    let master_keys = MasterKeys::find(cluster(), "shadowed").await;
    let [a, b, c] = ["a", "b", "c"].map(|name| Fixed.policy(name, "2/month"));
    let limiter = limiter(store(cluster()), [a, b, c.shadow()]);
    assert!(admits(&limiter, master_keys.apart()).await);
    let of_c = keys(cluster(), &format!(":c:{}", master_keys.key(2).as_str()));
    let [(foreign, master)] = &of_c[..] else {
        panic!("{of_c:?}");
    };
    let master = &cluster().nodes()[*master];
    master.command(&["SET", foreign, "something else", "EX", "3600"]);
    for is_admitted in [true, false] {
        let decision = limiter.check(master_keys.apart()).await;
        assert_eq!(decision.source(), DecisionSource::Store);
        assert_eq!(decision.is_admitted(), is_admitted);
    }
    master.command(&["DEL", foreign]);
}

#[tokio::test]
async fn the_error_of_a_settlement_in_several_slots_names_the_settled_policies() {
    let master_keys = MasterKeys::find(cluster(), "settled").await;
    let limiter = three([(Fixed, "9/month"), (Fixed, "8/month"), (Fixed, "7/month")]);
    let all = master_keys.apart();
    let admission = limiter.admit(all.clone()).cost(3).await.expect("room");
    let each = |cost| [("a", cost), ("b", cost), ("c", cost)];
    for cost in [5, 2] {
        admission.settle_each(each(cost)).await.expect("a response");
        assert_eq!(used(&limiter, all.clone()).await, [cost; 3]);
    }
    let of_b = keys(cluster(), &format!(":b:{}", master_keys.key(1).as_str()));
    let [(foreign, master)] = &of_b[..] else {
        panic!("{of_b:?}");
    };
    let master = &cluster().nodes()[*master];
    master.command(&["SET", foreign, "something else", "EX", "3600"]);
    let settled = admission.settle_each(each(6)).await;
    let Err(SettleError::Store { settled, error, .. }) = settled else {
        panic!("{settled:?}");
    };
    assert_eq!(error.code(), "corrupt_key");
    assert_eq!(settled.join(" "), "a c");
    master.command(&["DEL", foreign]);
    assert_eq!(used(&limiter, all).await, [6, 0, 6]);
}
