//! What `Changes` says of the counts is what happens to them.

use proptest::{prelude::*, sample::select, test_runner::TestRunner};
use tokio::runtime::Runtime;
use tollgate::changes::{PolicyChange, PolicyChangeKind};
use tollgate_tests::prelude::*;

use super::support::*;

/// A policy `p`, as a document has it.
#[derive(Clone, Debug)]
struct Edit {
    strategy: StrategyKind,
    quota: String,
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let strategy = prop_oneof![3 => Just(StrategyKind::Gcra), 4 => select(&StrategyKind::ALL)];
    let period = select(&["1s", "40s", "min", "90s", "h", "day"]);
    let burst = prop::option::of(1..=60_u64);
    let edit =
        (strategy, 1..=40_u64, period, burst).prop_map(|(strategy, requests, period, burst)| {
            let burst = burst.filter(|_| strategy.is_even());
            let burst = burst.map_or(String::new(), |burst| format!(" burst {burst}"));
            Edit {
                strategy,
                quota: format!("{requests}/{period}{burst}"),
            }
        });
    // Most edits change the quota alone.
    prop::collection::vec((edit, any::<bool>(), any::<bool>()), 2..12).prop_map(|edits| {
        let mut last: Option<Edit> = None;
        let kept = edits
            .into_iter()
            .map(|(mut edit, same_strategy, same_strategy_too)| {
                if let Some(last) = last.as_ref().filter(|_| same_strategy || same_strategy_too)
                    && (last.strategy.is_even() || !edit.quota.contains("burst"))
                {
                    edit.strategy = last.strategy;
                }
                last = Some(edit.clone());
                edit
            });
        kept.collect()
    })
}

fn capacity(quota: &str) -> u64 {
    quota.parse::<Quota>().expect(quota).capacity()
}

/// The units that are left by what is said of a policy's counts, of which `used` were used.
fn left_as_stated(change: &PolicyChange, before: &str, after: &str, used: u64) -> u64 {
    let capacity = capacity(after);
    let Some(counts) = change.counts() else {
        assert_eq!(change.kind(), PolicyChangeKind::Kept);
        return capacity - used;
    };
    let first = counts.split(';').next().expect("a part");
    if counts.contains("start afresh") {
        return capacity;
    }
    let Some((_, example)) = first.split_once(": ") else {
        assert!(first.starts_with("the count"), "{counts}");
        return capacity - used;
    };
    let (of, becomes) = example.split_once(" are ").expect(example);
    assert_eq!(of, format!("{used} of {}", self::capacity(before)));
    if becomes.contains("all ") {
        return 0;
    }
    let units = becomes.strip_suffix(&format!(" of {capacity}"));
    capacity - units.expect(becomes).parse::<u64>().expect(becomes)
}

#[test]
fn after_any_edit_the_counts_are_what_the_changes_say() {
    let runtime = Runtime::new().expect("a runtime");
    for world in World::both() {
        let config = ProptestConfig {
            cases: 120,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let outcome = TestRunner::new(config).run(&edits(), |edits| {
            runtime.block_on(follow(&world, &edits));
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }
}

/// Makes one edit after the other, each with three fifths of a key used, as in the examples.
async fn follow(world: &World, edits: &[Edit]) {
    world.set(START + 10_000_000);
    let limiter = world.single(edits[0].strategy, &edits[0].quota);
    for pair in edits.windows(2) {
        let [last, edit] = pair else { unreachable!() };
        let key = fresh_key();
        let used = (capacity(&last.quota) * 3).div_ceil(5);
        let charged = limiter.charge(key, used).await;
        assert!(admitted_by_store(&charged));
        let policy = edit.strategy.policy("p", &edit.quota);
        let changes = limiter.reconfigure(Limiter::builder().policy(policy));
        let changes = changes.expect("a valid policy");
        let _case = Case(format!("{changes} on {}", world.name()));
        let change = changes.policy("p").expect("a policy");
        let stated = left_as_stated(change, &last.quota, &edit.quota, used);
        assert_eq!(left(&limiter, key).await, stated);
    }
}

#[tokio::test]
async fn a_ban_and_its_counted_rejections_stay_and_the_next_ban_follows_the_new_settings() {
    for world in World::both() {
        world.set(START);
        let policies = |quota: &str, ban: u64| {
            let ban = Ban::for_duration(secs(ban)).max_duration(secs(ban));
            let quota = quota.parse::<Quota>().expect(quota);
            let daily = StrategyKind::Fixed.policy("daily", "1/day");
            [daily, Policy::new("abuse", quota).strategy(ban)]
        };
        let limiter = world.limiter(policies("3/min", 600));
        let reconfigure = |quota: &str, ban: u64| {
            let builder = policies(quota, ban)
                .into_iter()
                .fold(Limiter::builder(), |builder, policy| builder.policy(policy));
            let changes = limiter.reconfigure(builder).expect("valid policies");
            let counts = changes.policy("abuse").expect("a policy").counts();
            let stay =
                "counted rejections and bans stay, and the next ban follows the new settings";
            assert_eq!(counts, Some(stay));
        };
        let key = fresh_key();
        let banned_for = async || {
            let seen = limiter.peek(key).await.expect("a response");
            let abuse = seen.policy("abuse").expect("a policy");
            (
                abuse.remaining(),
                abuse.retry_after().duration().expect("a wait"),
            )
        };
        // One request is admitted, two are rejected.
        assert_eq!(send(&limiter, key, 3).await, 1);
        reconfigure("5/min", 600);
        assert_eq!(banned_for().await, (3, secs(0)));
        assert_eq!(send(&limiter, key, 3).await, 0);
        assert_eq!(banned_for().await.1, secs(600));
        reconfigure("1/min", 60);
        assert_eq!(banned_for().await.1, secs(600));
        world.advance(secs(600));
        assert_eq!(send(&limiter, key, 1).await, 0);
        assert_eq!(banned_for().await.1, secs(60));
    }
}

#[tokio::test]
async fn the_counts_of_a_removed_policy_count_again_until_they_expire() {
    each("5/h", async |scene| {
        let removed = scene.strategy.policy("p", "5/h");
        let kept = scene.strategy.policy("kept", "9/h");
        let limiter = scene.world.limiter([kept.clone(), removed.clone()]);
        let reconfigure = |builder| {
            let changes = limiter.reconfigure(builder).expect("valid policies");
            let p = changes.policy("p").expect("a policy");
            (p.kind(), p.counts().map(str::to_owned))
        };
        assert_eq!(send(&limiter, scene.key, 3).await, 3);
        let (kind, counts) = reconfigure(Limiter::builder().policy(kept.clone()));
        assert_eq!(kind, PolicyChangeKind::Removed);
        assert_eq!(counts.as_deref(), Some("its counts expire by themselves"));
        let (kind, _) = reconfigure(Limiter::builder().policy(removed).policy(kept));
        assert_eq!(kind, PolicyChangeKind::Added);
        assert_eq!(left(&limiter, scene.key).await, 2);
        scene.world.advance(secs(2 * 3_600));
        assert_eq!(left(&limiter, scene.key).await, 5);
    })
    .await;
}
