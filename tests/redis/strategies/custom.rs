//! Strategies from outside the crate: on both stores, beside the crate's own, batched and merged like them.

use tollgate::{
    store::{CounterResult, OpResult},
    strategy::{
        ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RuleInfo, Snapshot,
        State, Strategy,
    },
};
use tollgate_tests::prelude::*;

use super::support::*;

pub(crate) use custom_strategy::Trial;

#[allow(dead_code, unreachable_pub)]
#[path = "../../../examples/custom_strategy.rs"]
mod custom_strategy;

fn trial(name: &str) -> Policy {
    Policy::new(name, Quota::requests(5).per_day()).strategy(Trial)
}

#[tokio::test]
async fn the_custom_strategy_of_the_example_counts_on_both_stores() {
    for world in World::both() {
        let limiter = world.limiter([trial("trial")]);
        assert_eq!(send_concurrently(&limiter, KEY, 64).await, 5);
        world.advance(secs(86_399));
        assert_eq!(send(&limiter, KEY, 1).await, 0);
        world.advance(secs(1));
        let last = limiter.admit(KEY).cost(5).await;
        assert!(admitted_by_store(&last));
        assert_eq!(refund(&last.expect("room"), 2).await, 2);
        assert_eq!(left(&limiter, KEY).await, 2);
        assert!(!admitted_by_store(&limiter.check(KEY).cost(3).await));
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn a_custom_strategy_beside_any_built_in_one_is_all_or_nothing() {
    each("3/day", async |scene| {
        for first in [true, false] {
            let (key, other) = (fresh_key(), fresh_key());
            // The one is used up by the sixth request; the other allows fewer under the second key.
            let mut policies = [trial("trial"), scene.strategy.policy("ours", "3/day")];
            if !first {
                policies.reverse();
            }
            let limiter = scene.world.limiter(policies);
            let keys = |ours| [("trial", key), ("ours", ours)];
            let used = async |ours| {
                let seen = limiter.peek(keys(ours)).await.expect("a response");
                ["trial", "ours"].map(|name| seen.used(name))
            };
            assert_eq!(limiter.check(key).times(9).await.admitted(), 3);
            assert_eq!(used(key).await, [3, 3]);
            assert_eq!(limiter.check(keys(other)).times(9).await.admitted(), 2);
            assert_eq!(used(other).await, [5, 2]);
            assert!(!admitted_by_store(&limiter.check(keys(other)).await));
            assert_eq!(used(other).await, [5, 2], "a rejection is not charged");
        }
    })
    .await;
}

/// Half a strategy, for Redis alone: it counts, and then fails for each request of cost two.
#[derive(Clone, Copy, Debug)]
struct Broken {
    /// Whether it undoes its own write, as the contract has it.
    tidy: bool,
    /// How many units more than the quota its script is given.
    surplus: i64,
}

fn broken(tidy: bool) -> Broken {
    Broken { tidy, surplus: 0 }
}

/// Its script has another capacity than its rule.
fn inaccurate() -> Broken {
    Broken {
        surplus: 1,
        ..broken(true)
    }
}

const BROKEN: &str = r"
    local function available(key, p)
      local value = call('GET', key)
      local used = value and number(key, value, 8) or 0
      return p[1] - used, used
    end

    local function charge(key, p, used, _, _, units)
      call('SET', key, format('%d', used + units), 'PX', '60000')
      if units == 2 then
        local ok, why = pcall(call, 'LPUSH', key, 'a bad call')
        if p[2] == 1 then
          call('SET', key, format('%d', used), 'PX', '60000')
        end
        error(why, 0)
      end
      return used + units
    end

    local function refund(key, p, used, _, _, charged_at, window_id, remaining, want)
      local back = min(want, remaining, used)
      call('SET', key, format('%d', used - back), 'PX', '60000')
      return back, used - back
    end

    return { available = available, charge = charge, refund = refund, repair = function() end }
";

impl Strategy for Broken {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let parameters = [quota.amount() as i64 + self.surplus, i64::from(self.tidy)];
        let script = LuaScript::new(BROKEN, parameters);
        Ok(Arc::new(Bound::<false>(quota.amount(), Some(script))))
    }
}

/// A rule of so many units, by its script, or in process where it has none.
#[derive(Clone, Debug)]
struct Bound<const LARGE: bool>(u64, Option<LuaScript>);

impl<const LARGE: bool> Rule for Bound<LARGE> {
    fn info(&self) -> RuleInfo {
        RuleInfo::new("z1", self.0)
    }

    fn status(&self, snapshot: &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
        let [used] = snapshot.values();
        let left = self.0.saturating_sub(used as u64);
        let retry_after = match cost <= left {
            true => RetryAfter::Now,
            false => RetryAfter::In(secs(60)),
        };
        QuotaStatus::new(left, retry_after, secs(60))
    }

    fn script(&self) -> Option<LuaScript> {
        self.1.clone()
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        self.1.is_none().then(|| ErasedLocalRule::new(self))
    }
}

#[tokio::test]
async fn a_custom_strategy_that_fails_after_its_write_leaves_the_others_uncharged() {
    let world = World::redis();
    for (first, tidy) in [(true, true), (true, false), (false, true), (false, false)] {
        each_in(&world, &StrategyKind::ALL, "10/min", async |scene| {
            let _case = Case(format!("broken first: {first}, tidy: {tidy}"));
            let broken = Policy::new("broken", quota("100/min")).strategy(broken(tidy));
            let mut policies = [scene.strategy.policy("ours", "10/min"), broken];
            if first {
                policies.reverse();
            }
            let limiter = world.limiter(policies);
            assert_eq!(send(&limiter, KEY, 3).await, 3);
            let failed = limiter.check(KEY).cost(2).await;
            assert!(matches!(
                store_error(&failed),
                StoreError::CorruptKey { .. } | StoreError::Server { .. }
            ));
            let seen = limiter.peek(KEY).await.expect("a response");
            let (ours, broken) = (seen.used("ours"), seen.used("broken"));
            assert!(ours == 3 && (broken == 3 || !tidy), "{seen:?}");
            world.no_key_is_immortal();
        })
        .await;
    }
}

#[tokio::test]
async fn a_strategy_that_the_store_cannot_count_by_is_a_config_error() {
    let policy = |strategy: Broken| Policy::new("p", quota("5/min")).strategy(strategy);
    let local = Policy::new("p", quota("1/min")).strategy(InProcess);
    let (on_redis, inaccurate) = (policy(broken(true)), policy(inaccurate()));
    let (memory, redis) = (World::memory(), World::redis());
    for (world, policy, value, expected) in [
        (&memory, &on_redis, "on Redis only", "RedisStore"),
        (&redis, &local, "in process only", "MemoryStore"),
        (&redis, &inaccurate, "parameters [6, 1]", "capacity, 5,"),
    ] {
        let error = world.builder().policy(policy.clone()).build();
        let error = error.expect_err("a mistake");
        assert_eq!(error.policy(), Some("p"));
        assert!(error.value().contains(value), "{error}");
        assert!(error.expected().contains(expected), "{error}");
        let nameless = Policy::new("", quota("5/min"));
        let mistakes = world
            .builder()
            .policy(policy.clone())
            .policy(nameless)
            .mistakes();
        assert_eq!((mistakes.len(), &mistakes[0]), (2, &error));
    }
    assert!(redis.builder().policy(on_redis).build().is_ok());
    assert_eq!(send(&memory.limiter([local]), KEY, 3).await, 1);
}

/// Counts in process alone: small and large quotas by rules of two types, which share their state.
#[derive(Clone, Copy, Debug)]
struct InProcess;

impl Strategy for InProcess {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let units = quota.amount();
        Ok(match units > 100 {
            true => Arc::new(Bound::<true>(units, None)),
            false => Arc::new(Bound::<false>(units, None)),
        })
    }
}

#[derive(Debug, Default)]
struct Count(u64);

impl State for Count {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(i64::MAX)
    }
}

impl<const LARGE: bool> LocalRule for Bound<LARGE> {
    type State = Count;

    fn available(&self, state: &mut Count, _now: Timestamp) -> i64 {
        self.0 as i64 - state.0 as i64
    }

    fn charge(&self, state: &mut Count, _now: Timestamp, units: u64, _caller: &Key) {
        state.0 += units;
    }

    fn refund(
        &self,
        state: &mut Count,
        _: Timestamp,
        _: &ChargeReceipt,
        want: u64,
        _: &Key,
    ) -> u64 {
        state.0 -= want;
        want
    }

    fn snapshot(&self, state: &Count, _now: Timestamp, _cost: u64) -> Snapshot {
        Snapshot::new([state.0 as i64])
    }
}

#[tokio::test]
async fn a_strategy_may_count_its_quotas_by_rules_of_several_types_over_one_state() {
    let small = Policy::new("p", Quota::requests(5).per_day()).strategy(InProcess);
    let large = Quota::requests(200).per_day();
    let limiter = World::memory().limiter([small.tier_quotas([large])]);
    let under_large = || limiter.admit(KEY).quota_for("p", large);
    let several = limiter.check(KEY).quota_for("p", large).times(150);
    assert_eq!(send(&limiter, KEY, 3).await, 3);
    assert_eq!(several.await.admitted(), 150);
    assert_eq!(send(&limiter, KEY, 1).await, 0, "153 of 5 are used");
    let last = under_large().cost(47).await;
    assert!(admitted_by_store(&last));
    assert!(!admitted_by_store(&under_large().await));
    assert_eq!(refund(&last.expect("room"), 47).await, 47);
    // The rule of a policy that replaces it finds the same state.
    let larger = Policy::new("p", Quota::requests(160).per_day()).strategy(InProcess);
    let changes = limiter.reconfigure(Limiter::builder().policy(larger));
    changes.expect("the same store");
    assert_eq!(left(&limiter, KEY).await, 7, "153 of 160 are used");
}

/// A result that leaves one of the policies out.
#[tokio::test]
async fn a_store_must_report_each_policy_and_a_capacity_must_be_below_the_largest_cost() {
    for reported in 0..=2 {
        let store = StubStore::responding(move |_| {
            let results = (0..reported).map(|_| CounterResult::new(1, Snapshot::default()));
            let result = OpResult::new(Timestamp::default(), 1, results);
            Some(StoreResponse::Ready(Ok(result)))
        });
        let policies = ["p", "q"].map(|name| StrategyKind::Gcra.policy(name, "10/min"));
        let limiter = stores::limiter(Limiter::builder().store(store), policies);
        let decision = limiter.check(KEY).await;
        let is_error = matches!(
            decision.kind(),
            DecisionKind::StoreFailed(StoreError::Unsupported(_))
        );
        assert_eq!(is_error, reported < 2, "{decision:?}");
        let peeked = limiter.peek(KEY).await;
        assert_eq!(peeked.is_err(), reported < 2, "{peeked:?}");
    }
    for (capacity, fits) in [
        (999_999_999_999_999, true),
        (1_000_000_000_000_000, false),
        (u64::MAX, false),
    ] {
        let policy = Altered::policy("p", "1/min", Gcra, |altered| {
            altered.info = RuleInfo::new("z3", capacity);
        });
        let limiter = Limiter::builder().policy(policy).build();
        assert_eq!(limiter.is_ok(), fits, "{capacity}");
    }
}
