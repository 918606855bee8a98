//! Strategies from outside the crate: on both stores, beside the crate's own, batched and merged like them.

use std::sync::LazyLock;

use tollgate::{
    config::{Document, Format, Registry},
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
        let mut last = limiter.check(KEY).cost(5).await;
        assert!(admitted_by_store(&last));
        assert_eq!(refund(&mut last, 2).await, 2);
        assert_eq!(left(&limiter, KEY).await, 2);
        assert!(!admitted_by_store(&limiter.check(KEY).cost(3).await));
        world.no_key_is_immortal();
    }
}

/// The units that are used under two policies.
async fn used(limiter: &Limiter, keys: impl Into<Keys>, names: [&str; 2]) -> [u64; 2] {
    let seen = limiter.peek(keys).await.expect("a response");
    names.map(|name| {
        let policy = seen.policy(name).expect("a policy");
        policy.limit() - policy.remaining()
    })
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
            let used = |ours| used(&limiter, keys(ours), ["trial", "ours"]);
            assert_eq!(limiter.check(key).times(9).await.admitted(), 3);
            assert_eq!(used(key).await, [3, 3]);
            assert_eq!(limiter.check(keys(other)).times(9).await.admitted(), 2);
            assert_eq!(used(other).await, [5, 2]);
            assert!(!admitted_by_store(&limiter.check(keys(other)).await));
            assert_eq!(
                used(other).await,
                [5, 2],
                "a rejected request is not charged"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn equal_requests_under_a_custom_strategy_are_merged_and_others_share_a_batch() {
    let world = World::redis();
    let server = world.server();
    let policies = [trial("trial"), StrategyKind::Gcra.policy("ours", "1000/s")];
    let limiter = world.limiter(policies);
    // The script is there.
    assert_eq!(send(&limiter, fresh_key(), 1).await, 1);
    server.reset_stats();
    assert_eq!(send_concurrently(&limiter, fresh_key(), 64).await, 5);
    assert_eq!(server.calls("evalsha"), 1, "64 requests share one batch");
    // One entry: one write under each policy.
    assert_eq!(server.calls("set"), 2);

    server.reset_stats();
    let checks = (0..64).map(|_| limiter.check(fresh_key()).into_future());
    assert!(join_all(checks).await.iter().all(admitted_by_store));
    let calls = server.calls("evalsha");
    assert!(calls <= 8, "64 keys took {calls} calls of four workers");
}

/// The example's, of which units may be charged that belong to no request.
#[derive(Debug)]
struct Lowerable(Arc<dyn Rule>);

#[derive(Clone, Copy, Debug)]
struct LowerableTrial;

impl Strategy for LowerableTrial {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(Lowerable(Trial.bind(quota, terms)?)))
    }
}

impl Rule for Lowerable {
    fn info(&self) -> RuleInfo {
        let mut info = self.0.info();
        info.supports_lower = true;
        info
    }

    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus {
        self.0.status(snapshot, now, cost)
    }

    fn script(&self) -> Option<LuaScript> {
        self.0.script()
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        self.0.local_rule()
    }
}

#[tokio::test]
async fn a_custom_strategy_is_lowered_if_it_says_that_it_can_be() {
    for world in World::both() {
        let limiter = world.limiter([
            trial("trial"),
            Policy::new("lowerable", Quota::requests(5).per_day()).strategy(LowerableTrial),
        ]);
        let lower = async |name: &str, remaining| {
            let policy = limiter.policy(name).expect("a policy");
            policy.lower_to(KEY, remaining, Some(secs(0))).await
        };
        let error = lower("trial", 3).await.expect_err("it does not say so");
        assert!(
            matches!(error, CallError::LowerUnsupported { .. }),
            "{error}"
        );
        assert!(admitted_by_store(&limiter.check(KEY).await));
        for (remaining, charged) in [(3, 1), (4, 0), (0, 3)] {
            let units = lower("lowerable", remaining).await.expect("a response");
            assert_eq!(units, charged);
        }
        let used = used(&limiter, KEY, ["trial", "lowerable"]).await;
        assert_eq!(used, [1, 5]);
        world.no_key_is_immortal();
    }
}

/// Half a strategy, for Redis alone: it counts, and then fails for each request of cost two.
#[derive(Clone, Copy, Debug)]
struct Broken {
    /// Whether it undoes its own write, as the contract has it.
    tidy: bool,
    /// How many units more than the quota its script is given.
    surplus: i64,
}

impl Broken {
    const fn new(tidy: bool) -> Self {
        Self { tidy, surplus: 0 }
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
        Ok(Arc::new(Bound {
            units: quota.amount(),
            script: Some(LuaScript::new(
                BROKEN,
                [quota.amount() as i64 + self.surplus, i64::from(self.tidy)],
            )),
        }))
    }
}

#[derive(Debug)]
struct Bound {
    units: u64,
    script: Option<LuaScript>,
}

impl Rule for Bound {
    fn info(&self) -> RuleInfo {
        RuleInfo::new("z1", self.units)
    }

    fn status(&self, snapshot: &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
        let [used] = snapshot.values();
        let left = self.units.saturating_sub(used as u64);
        let retry_after = match cost <= left {
            true => tollgate::RetryAfter::Now,
            false => tollgate::RetryAfter::In(secs(60)),
        };
        QuotaStatus::new(left, retry_after, secs(60))
    }

    fn script(&self) -> Option<LuaScript> {
        self.script.clone()
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        None
    }
}

/// A window that would end in a minute.
#[derive(Clone, Copy, Debug)]
struct Windowed;

impl Strategy for Windowed {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        static SOURCE: LazyLock<String> = LazyLock::new(|| {
            let window_end = "return { window_end = function() return now + 60000000 end, ";
            BROKEN.replace("return { ", window_end)
        });
        let units = quota.amount();
        let script = Some(LuaScript::new(&SOURCE, [units as i64, 1]));
        Ok(Arc::new(Lowerable(Arc::new(Bound { units, script }))))
    }
}

#[tokio::test]
async fn a_custom_strategy_with_windows_says_on_redis_when_they_end() {
    let windowed = Policy::new("windowed", Quota::requests(5).per_minute()).strategy(Windowed);
    let world = World::redis();
    let limiter = world.limiter([windowed]);
    let policy = limiter.policy("windowed").expect("a policy");
    for (resets_in, charged) in [(53, 0), (54, 1)] {
        let lowered = policy.lower_to(KEY, 4, Some(secs(resets_in))).await;
        assert_eq!(lowered.expect("a response"), charged);
    }
}

#[tokio::test]
async fn a_custom_strategy_that_fails_after_its_write_leaves_the_others_uncharged() {
    let world = World::redis();
    for (first, tidy) in [(true, true), (true, false), (false, true), (false, false)] {
        each_in(&world, &StrategyKind::ALL, "10/min", async |scene| {
            let _case = Case(format!("broken first: {first}, tidy: {tidy}"));
            let broken = Policy::new("broken", Quota::requests(100).per_minute());
            let broken = broken.strategy(Broken::new(tidy));
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
            let [ours, broken] = used(&limiter, KEY, ["ours", "broken"]).await;
            assert_eq!(ours, 3);
            assert!(broken == 3 || !tidy, "{broken}");
            // Many at once, some of which fail.
            let checks = (0..12).map(|n| limiter.check(KEY).cost(1 + n % 2).into_future());
            let decisions = join_all(checks).await;
            let passed = decisions.iter().filter(|decision| decision.is_admitted());
            let costs = passed.map(|one| one.policies().next().expect("a policy").cost());
            let charged: u64 = costs.sum();
            assert!(charged >= 1);
            let [ours, _] = used(&limiter, KEY, ["ours", "broken"]).await;
            assert_eq!(ours, 3 + charged);
            world.no_key_is_immortal();
        })
        .await;
    }
}

#[tokio::test]
async fn a_strategy_that_the_store_cannot_count_by_is_a_config_error() {
    let policy =
        |strategy: Broken| Policy::new("p", Quota::requests(5).per_minute()).strategy(strategy);
    let local = Policy::new("p", Quota::requests(1).per_minute()).strategy(Local);
    let on_redis = policy(Broken::new(true));
    // Its script has another capacity than its rule.
    let inaccurate = policy(Broken {
        tidy: true,
        surplus: 1,
    });
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
    }
    assert!(redis.builder().policy(on_redis).build().is_ok());
    assert_eq!(send(&memory.limiter([local]), KEY, 3).await, 1);
}

/// Counts in process alone.
#[derive(Clone, Copy, Debug)]
struct Local;

impl Strategy for Local {
    fn bind(&self, _quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(Local))
    }
}

#[derive(Debug, Default)]
struct Once(bool);

impl State for Once {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(i64::MAX)
    }
}

impl LocalRule for Local {
    type State = Once;

    fn available(&self, state: &mut Once, _now: Timestamp) -> i64 {
        i64::from(!state.0)
    }

    fn charge(&self, state: &mut Once, _now: Timestamp, _units: u64, _caller: &Key) {
        state.0 = true;
    }

    fn refund(&self, state: &mut Once, _: Timestamp, _: &ChargeReceipt, want: u64, _: &Key) -> u64 {
        state.0 = false;
        want
    }

    fn snapshot(&self, state: &Once, _now: Timestamp, _cost: u64) -> Snapshot {
        Snapshot::new([i64::from(state.0)])
    }
}

impl Rule for Local {
    fn info(&self) -> RuleInfo {
        RuleInfo::new("z2", 1)
    }

    fn status(&self, snapshot: &Snapshot, _now: Timestamp, _cost: u64) -> QuotaStatus {
        let [used] = snapshot.values();
        let retry_after = match used {
            0 => tollgate::RetryAfter::Now,
            _ => tollgate::RetryAfter::Never,
        };
        QuotaStatus::new(1 - used as u64, retry_after, Duration::ZERO)
    }

    fn script(&self) -> Option<LuaScript> {
        None
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

#[test]
fn a_document_has_strategies_that_its_store_can_count_by() {
    let registry = Registry::new()
        .strategy("on-redis", Broken::new(true))
        .strategy("in-process", Local)
        .strategy(
            "inaccurate",
            Broken {
                tidy: true,
                surplus: 1,
            },
        );
    let memory = World::memory().limiter([trial("other")]);
    for (store, strategy, missing) in [
        ("url = 'redis://127.0.0.1:1'", "on-redis", None),
        ("max_keys = 9", "in-process", None),
        ("max_keys = 9", "on-redis", Some("or a RedisStore")),
        (
            "url = 'redis://127.0.0.1:1'",
            "in-process",
            Some("or a MemoryStore"),
        ),
        (
            "url = 'redis://127.0.0.1:1'",
            "inaccurate",
            Some("its capacity, 5"),
        ),
    ] {
        let text = |store: &str| {
            format!("{store}\n[policies.p]\nquota = '5/min'\nstrategy = '{strategy}'")
        };
        let document =
            |store: &str| Document::parse(&text(store), Format::Toml).expect("a document");
        let of_store = document(&format!("[store]\n{store}"));
        let built = of_store.limiter(&registry).map(drop);
        let expected = built.as_ref().err().map(|error| {
            let mistake = &error.mistakes()[0];
            assert_eq!(error.mistakes().len(), 1, "{error}");
            assert_eq!(mistake.path(), "policies.p.strategy");
            mistake.expected()
        });
        match (expected, missing) {
            (Some(expected), Some(missing)) => assert!(expected.contains(missing), "{expected}"),
            (expected, missing) => assert_eq!(expected, missing),
        }
        // The store of a builder is not known yet.
        drop(of_store.builder(&registry).expect("a builder"));
        let replaced = document("").reconfigure(&memory, &registry);
        assert_eq!(replaced.is_ok(), strategy == "in-process");
    }
}

/// A store that counts how often a limit was registered.
#[derive(Clone, Debug)]
struct Registering(MemoryStore, Arc<AtomicUsize>);

impl Store for Registering {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.register(policy, rule)
    }

    fn supports(&self, rule: &dyn Rule) -> Result<(), InvalidValue> {
        self.0.supports(rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        self.0.execute(op, counters)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        self.0.execute_detached(op, counters);
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        self.0.callers(limit, key)
    }
}

#[test]
fn settings_with_a_mistake_register_nothing() {
    let registered = Arc::new(AtomicUsize::new(0));
    let store = Registering(MemoryStore::new(), registered.clone());
    let builder =
        || Limiter::builder().policy(trial("p").tier_quotas([Quota::requests(9).per_day()]));
    let limiter = builder().store(store.clone()).build().expect("a limiter");
    assert_eq!(registered.load(Ordering::Relaxed), 2);
    let unsupported = Policy::new("q", Quota::requests(5).per_minute()).strategy(Broken::new(true));
    let first = || Limiter::builder().policy(trial("first"));
    for mistake in [
        first().policy(trial("q").cost(6)),
        first().policy(unsupported),
        first().policy(trial("q").shadow_of("none")),
        first().skip_path("no path"),
    ] {
        limiter.reconfigure(mistake.clone()).expect_err("a mistake");
        let built = mistake.store(store.clone()).build();
        built.expect_err("a mistake");
    }
    assert_eq!(registered.load(Ordering::Relaxed), 2);
}

/// Counts small and large quotas by rules of two types, which share their state.
#[derive(Clone, Copy, Debug)]
struct BySize;

#[derive(Debug)]
struct Sized<const LARGE: bool>(u64);

#[derive(Debug, Default)]
struct Count(u64);

impl Strategy for BySize {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let units = quota.amount();
        Ok(match units > 100 {
            true => Arc::new(Sized::<true>(units)),
            false => Arc::new(Sized::<false>(units)),
        })
    }
}

impl State for Count {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(i64::MAX)
    }
}

impl<const LARGE: bool> LocalRule for Sized<LARGE> {
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

impl<const LARGE: bool> Rule for Sized<LARGE> {
    fn info(&self) -> RuleInfo {
        RuleInfo::new("z3", self.0)
    }

    fn status(&self, snapshot: &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
        let [used] = snapshot.values();
        let left = self.0.saturating_sub(used as u64);
        let retry_after = match cost <= left {
            true => tollgate::RetryAfter::Now,
            false => tollgate::RetryAfter::Never,
        };
        QuotaStatus::new(left, retry_after, Duration::ZERO)
    }

    fn script(&self) -> Option<LuaScript> {
        None
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

#[tokio::test]
async fn a_strategy_may_count_its_quotas_by_rules_of_several_types_over_one_state() {
    let small = Policy::new("p", Quota::requests(5).per_day()).strategy(BySize);
    let large = Quota::requests(200).per_day();
    let limiter = World::memory().limiter([small.tier_quotas([large])]);
    let under_large = || limiter.check(KEY).quota_for("p", large);
    assert_eq!(send(&limiter, KEY, 3).await, 3);
    assert_eq!(under_large().times(150).await.admitted(), 150);
    assert_eq!(send(&limiter, KEY, 1).await, 0, "153 of 5 are used");
    let mut last = under_large().cost(47).await;
    assert!(admitted_by_store(&last));
    assert!(!admitted_by_store(&under_large().await));
    assert_eq!(refund(&mut last, 47).await, 47);
    // The rule of a policy that replaces it finds the same state.
    let larger = Policy::new("p", Quota::requests(160).per_day()).strategy(BySize);
    let changes = limiter.reconfigure(Limiter::builder().policy(larger));
    changes.expect("the same store");
    assert_eq!(left(&limiter, KEY).await, 7, "153 of 160 are used");
}
