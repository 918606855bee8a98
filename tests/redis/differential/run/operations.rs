//! The operations of a history's steps, and how their results compare.

use futures_util::future::Either;
use tollgate::limiter::{Check, Keys as RequestKeys, LimitStatus, Override};
use tollgate_tests::{
    charges::{charge_every, refund_every, settle_every},
    prelude::*,
    strategy_kind::StrategyKind as Plain,
};

use super::{BOUND, Held, Outcome, Run, UNUSED};
use crate::differential::{
    history::{
        KEYS, Overriding, PolicySpec, Rate, Request, Role, Settlement, key_named, key_of,
        policy_name,
    },
    keys::PolicyKey,
    response::{OpResult, Under, is_cached},
};

/// After this many yields all tasks that are ready have run, and those that they wake.
const YIELDS: usize = 8;

/// What becomes of a block, for so many milliseconds.
#[derive(Clone, Copy)]
pub(super) enum Block {
    For(u64),
    ForAtLeast(u64),
    End,
}

impl Run<'_> {
    /// A call, with its cost and tiers.
    fn dress<T>(&self, check: Check<T>, request: &Request) -> Check<T> {
        let check = match request.cost {
            Some(cost) => check.cost(cost),
            None => check,
        };
        let tiers = self.tiers(request).into_iter();
        tiers.fold(check, |check, (policy, quota)| {
            check.quota_for(policy, quota)
        })
    }

    /// The quotas of a request that are not the policies' own.
    fn tiers(&self, request: &Request) -> Vec<(String, Quota)> {
        let policies = self.policies.iter().enumerate();
        let tiers = policies.filter_map(|(place, policy)| {
            let tier = request.tier(policy, place);
            (policy.is_present() && tier != policy.own(tier))
                .then(|| (policy_name(place), policy.quotas[tier].quota()))
        });
        tiers.collect()
    }

    fn keys_of(&self, key: usize) -> RequestKeys {
        if key < KEYS {
            return RequestKeys::from(key_named(key));
        }
        let policies = self.policies.iter().enumerate();
        let present = policies.filter(|(_, policy)| policy.is_present());
        let each = present.map(|(place, _)| (policy_name(place), key_named(key_of(key, place))));
        each.collect::<Vec<(String, Key)>>().into()
    }

    /// The limiters that a request is for: over Redis, and in process.
    fn limiters(&mut self, request: &Request) -> [Limiter; 2] {
        [&mut self.redis, &mut self.memory].map(|side| side.limiter(&self.policies, request))
    }

    /// Sends a request, or several that are counted together, of which nothing is refunded.
    fn asked(
        &self,
        limiter: &Limiter,
        request: &Request,
    ) -> impl Future<Output = (Decision, Held)> + use<> {
        // A list window stores who called.
        let caller = request.cost.unwrap_or(0).wrapping_add(request.times) % 3;
        let keys = self.keys_of(request.key).caller(Key::from(caller));
        if request.times == 1 {
            let one = self.dress(limiter.admit(keys), request).into_future();
            Either::Left(one.map(|result| {
                let decision = result.decision();
                (decision, result.map_or(Held::Nothing, Held::Admission))
            }))
        } else {
            let several = self.dress(limiter.check(keys), request);
            let several = several.times(request.times).into_future();
            Either::Right(several.map(|decision| (decision, Held::Nothing)))
        }
    }

    pub(super) async fn check(&mut self, request: &Request) -> Outcome {
        let [redis, memory] = self.limiters(request);
        let (redis, memory) = (self.asked(&redis, request), self.asked(&memory, request));
        let redis = redis.await;
        self.check_others(request, redis, memory, true).await
    }

    /// Several checks at once. Then the limiters are reconfigured to other policies, if there are any, before the checks are
    /// decided.
    pub(super) async fn check_at_once(
        &mut self,
        requests: &[(Request, usize)],
        then: Option<&[PolicySpec]>,
    ) -> Outcome {
        let all = requests.iter();
        let all: Vec<_> = all
            .flat_map(|(request, n)| std::iter::repeat_n(request, *n))
            .collect();
        // A tier that was not declared is registered before the first of them is evaluated.
        for request in &all {
            let request = Request {
                key: UNUSED,
                ..(*request).clone()
            };
            for limiter in self.limiters(&request) {
                let peek = limiter.peek(key_named(UNUSED));
                drop(self.dress(peek, &request).await);
            }
            let quotas = self.quotas(&request, false);
            if let Some(model) = &mut self.model {
                model.meet(&quotas);
            }
        }
        let calls = all.iter().map(|request| {
            let [redis, memory] = self.limiters(request);
            (self.asked(&redis, request), self.asked(&memory, request))
        });
        let (redis, memory): (Vec<_>, Vec<_>) = calls.unzip();
        let mut redis = join_all(redis);
        let sent = (&mut redis).now_or_never();
        if let Some(policies) = then {
            for side in [&mut self.redis, &mut self.memory] {
                side.reconfigure(policies, vec![0; policies.len()]);
            }
        }
        let redis = match sent {
            Some(redis) => redis,
            None => redis.await,
        };
        for ((request, redis), memory) in all.into_iter().zip(redis).zip(memory) {
            self.check_others(request, redis, memory, false).await?;
        }
        Ok(())
    }

    /// Reconfigures the limiters in place while checks are pending, which are decided by the policies before.
    pub(super) async fn reload(
        &mut self,
        policies: &[PolicySpec],
        pending: &[(Request, usize)],
    ) -> Outcome {
        self.compare_shadows()?;
        self.check_at_once(pending, Some(policies)).await?;
        self.policies = policies.to_vec();
        if let Some(model) = &mut self.model
            && !model.reload(policies)
        {
            self.model = None;
        }
        let overrides = self.overrides.clone().into_iter();
        let unfit = overrides.filter(|((place, _), rate)| match rate {
            Some(rate) => !policies[*place].quotas.contains(rate),
            None => has_leases(policies),
        });
        for ((place, key), _) in unfit {
            for side in [&self.redis, &self.memory] {
                let (name, key) = (policy_name(place), key_named(key));
                let removed = side.limiter.remove_override(&name, key).await;
                removed.map_err(|error| error.to_string())?;
            }
            self.overrides.remove(&(place, key));
        }
        // A quota is registered before the first of several requests at once.
        let overridden: BTreeSet<_> = self.overrides.keys().map(|(_, key)| *key).collect();
        for key in overridden {
            self.touch(&Request::of(key)).await?;
        }
        Ok(())
    }

    pub(super) async fn set_override(
        &mut self,
        (place, key): PolicyKey,
        setting: Overriding,
    ) -> Outcome {
        let policy = &self.policies[place];
        let is_unfit = setting == Overriding::Exempt && has_leases(&self.policies);
        if !policy.is_present() || is_unfit {
            return Ok(());
        }
        let quota = |quota: usize| policy.quotas[quota % policy.quotas.len()];
        let set = match setting {
            Overriding::By(index) => Some(Some(quota(index))),
            Overriding::Exempt => Some(None),
            Overriding::Remove => None,
        };
        let of = |rate: Option<Rate>| {
            rate.map_or_else(Override::exempt, |rate| Override::quota(rate.quota()))
        };
        let before = self.overrides.get(&(place, key)).copied().map(of);
        let mut outcomes = Vec::new();
        for limiter in self.limiters(&Request::of(key)) {
            let policy = limiter.policy(&policy_name(place)).expect("a policy");
            let outcome = match set {
                Some(rate) => policy.set_override(key_named(key), of(rate)).await,
                None => policy.remove_override(key_named(key)).await,
            };
            outcomes.push(outcome.map_err(|error| error.to_string()));
        }
        if outcomes[0] != outcomes[1] || outcomes[0].as_ref().is_ok_and(|was| *was != before) {
            return Err(format!(
                "overrides before, on Redis and in process: {outcomes:?}, in truth {before:?}"
            ));
        }
        if outcomes[0].is_ok() {
            match set {
                Some(rate) => drop(self.overrides.insert((place, key), rate)),
                None => drop(self.overrides.remove(&(place, key))),
            }
        }
        self.touch(&Request::of(key)).await
    }

    pub(super) async fn credit(&mut self, place: usize, request: &Request, units: u64) -> Outcome {
        let (name, key) = (policy_name(place), request.key(place));
        let policy = &self.policies[place];
        if !policy.is_present() {
            return Ok(());
        }
        let is_shadow = policy.role == Role::Shadow;
        let mut quotas = vec![None; self.policies.len()];
        quotas[place] = self.quotas(request, true)[place];
        let tier = request.tier(policy, place);
        let quota = (tier != policy.own(tier)).then(|| policy.quotas[tier].quota());
        let mut outcomes = Vec::new();
        for limiter in self.limiters(request) {
            let policy = limiter.policy(&name).expect("a policy");
            let credit = policy.credit(key_named(key), units);
            let credit = match quota {
                Some(quota) => credit.quota_for(&name, quota),
                None => credit,
            };
            outcomes.push(match credit.await {
                Ok(credited) => {
                    let status = OpResult::of_status(&Ok(credited.status().clone()))?;
                    let has_room = status.under[&name].wait == Some(Duration::ZERO);
                    if credited.status().would_admit() != (is_shadow || has_room) {
                        return Err(format!("credited {credited:?}"));
                    }
                    Ok((credited.units(), status))
                }
                Err(error) => Err(error.to_string()),
            });
        }
        self.change_all();
        // What a credit removes counts everywhere as if it had never been charged.
        drop(self.keys.check_keys(self.server, self.now)?);
        if outcomes[0] != outcomes[1] {
            return Err(format!("credited on Redis and in process: {outcomes:?}"));
        }
        if let Some(model) = &mut self.model {
            let by_model = model.credit(request, &quotas, units);
            if by_model.as_ref() != outcomes[0].as_ref().ok() {
                return Err(format!(
                    "credited on both stores {:?}, by definition {by_model:?}",
                    outcomes[0]
                ));
            }
        }
        Ok(())
    }

    /// Sends to the others what Redis decided; `alone`: not at once with others.
    async fn check_others(
        &mut self,
        request: &Request,
        (redis, redis_holds): (Decision, Held),
        memory: impl Future<Output = (Decision, Held)>,
        alone: bool,
    ) -> Outcome {
        if is_cached(&redis) && self.policies.iter().any(|policy| policy.quotas.len() > 1) {
            // A store that evaluates a key under another quota reads its state anew, and writes it.
            self.redis.decisions.push(Held::Nothing);
            self.memory.decisions.push(Held::Nothing);
            if let Some(model) = &mut self.model {
                model.skip();
            }
            return Ok(());
        }
        let ((memory, memory_holds), quotas) = (memory.await, self.quotas(request, false));
        let model = self.model.as_mut();
        let model = model.map(|model| model.check(request, &quotas));
        self.compare_checks(request, &redis, &memory, model.as_ref(), alone)?;
        self.redis.decisions.push(redis_holds);
        self.memory.decisions.push(memory_holds);
        Ok(())
    }

    fn compare_checks(
        &mut self,
        request: &Request,
        redis: &Decision,
        memory: &Decision,
        model: Option<&OpResult>,
        alone: bool,
    ) -> Outcome {
        let (mut by_redis, mut by_memory) =
            (OpResult::of(redis, true)?, OpResult::of(memory, true)?);
        let mut by_model = model.cloned();
        if let Some(wait) = memory
            .policies()
            .filter_map(|v| v.retry_after().duration())
            .max()
        {
            self.last_wait = if wait.is_zero() { self.last_wait } else { wait };
        }
        if is_cached(redis) {
            let agree = by_memory.admitted == Some(0) && by_redis.admitted == Some(0);
            return if agree && self.times_are_exact(&by_redis, &by_memory) {
                Ok(())
            } else {
                Err(format!("cached {by_redis:?}\nin process {by_memory:?}"))
            };
        }
        if by_redis.admitted > Some(0) {
            self.changed = self.now;
        }
        self.record(request, &by_redis, alone);
        if !alone {
            // Equal requests at one instant return the state after all of them.
            let policies = &self.policies;
            let counting = |policy: &PolicySpec| policy.is_ban() || policy.role != Role::Live;
            let all = [&mut by_redis, &mut by_memory].into_iter();
            for result in all.chain(&mut by_model) {
                if policies.iter().any(counting) {
                    result.under.clear();
                }
                for under in result.under.values_mut() {
                    under.reset = Duration::ZERO;
                }
            }
        }
        compare(&by_redis, &by_memory, by_model.as_ref())
    }

    /// Whether all times from the cache are exact, unless something was admitted within its bound.
    fn times_are_exact(&self, cached: &OpResult, memory: &OpResult) -> bool {
        let times = |under: &Under| (under.wait, under.reset, under.rejects);
        self.changed + BOUND.as_micros() as u64 >= self.now
            || cached
                .under
                .iter()
                .all(|(name, under)| memory.under.get(name).map(times) == Some(times(under)))
    }

    pub(super) async fn charge(&mut self, request: &Request) -> Outcome {
        let cost = request.cost.unwrap_or(1);
        let [redis, memory] = self.limiters(request);
        let ask = |limiter: &Limiter| {
            let charge = limiter.charge(self.keys_of(request.key), cost);
            let tiers = self.tiers(request).into_iter();
            let charge = tiers.fold(charge, |charge, (policy, quota)| {
                charge.quota_for(policy, quota)
            });
            charge.into_future()
        };
        let permits = self.permits();
        let by_redis = OpResult::of_status(&ask(&redis).await)?;
        let by_memory = OpResult::of_status(&ask(&memory).await)?;
        self.leave_unheld(&permits);
        let quotas = self.quotas(request, true);
        if let Some(model) = &mut self.model {
            model.charge(request, &quotas);
        }
        self.redis.decisions.push(Held::Nothing);
        self.memory.decisions.push(Held::Nothing);
        compare(&by_redis, &by_memory, None)?;
        self.touch(request).await
    }

    /// Peeks, and sends a request of no cost, which writes what is repaired of the keys.
    pub(super) async fn touch(&mut self, request: &Request) -> Outcome {
        self.peek(request).await?;
        let free = Request {
            cost: Some(0),
            times: 1,
            ..request.clone()
        };
        let [redis, memory] = self.limiters(&free);
        let (redis, memory) = (self.asked(&redis, &free), self.asked(&memory, &free));
        let ((redis, _), (memory, _)) = (redis.await, memory.await);
        if is_cached(&redis) {
            return Ok(());
        }
        let quotas = self.quotas(&free, false);
        let model = self.model.as_mut();
        let model = model.map(|model| model.check_without_decision(&free, &quotas));
        let (by_redis, by_memory) = (OpResult::of(&redis, true)?, OpResult::of(&memory, true)?);
        let by_store = redis.source() == DecisionSource::Store;
        self.record(&free, &by_redis, by_store);
        compare(&by_redis, &by_memory, model.as_ref())
    }

    pub(super) async fn peek(&mut self, request: &Request) -> Outcome {
        let [redis, memory] = self.limiters(request);
        let ask = |limiter: &Limiter| {
            self.dress(limiter.peek(self.keys_of(request.key)), request)
                .into_future()
        };
        let statuses = [ask(&redis).await, ask(&memory).await];
        let [by_redis, by_memory] = [0, 1].map(|side| OpResult::of_status(&statuses[side]));
        let (by_redis, by_memory) = (by_redis?, by_memory?);
        self.explain(request, [&redis, &memory], &statuses).await?;
        let quotas = self.quotas(request, false);
        let model = self.model.as_mut();
        let model = model.map(|model| model.peek(request, &quotas));
        compare(&by_redis, &by_memory, model.as_ref())?;
        for (place, policy) in self.policies.iter().enumerate() {
            if policy.is_present() && policy.strategy == Plain::List.into() {
                let (name, key) = (policy_name(place), key_named(request.key(place)));
                let [redis, memory] =
                    [&redis, &memory].map(|side| side.policy(&name).expect("a policy"));
                let (redis, memory) = (redis.callers(key), memory.callers(key));
                let (redis, memory) = (redis.await, memory.await);
                if redis.as_ref().ok() != memory.as_ref().ok() {
                    return Err(format!("callers on Redis {redis:?}\nin process {memory:?}"));
                }
            }
        }
        Ok(())
    }

    /// Compares what operators are told of an HTTP request with a peek, unless it has a cost or a tier.
    async fn explain(
        &self,
        request: &Request,
        limiters: [&Limiter; 2],
        statuses: &[Result<LimitStatus, CallError>; 2],
    ) -> Outcome {
        let policies = self.policies.iter().enumerate();
        let mut head = http::Request::get("/");
        for (place, policy) in policies.filter(|(_, policy)| policy.is_present()) {
            let tier = request.tier(policy, place);
            if request.cost.is_some() || tier != policy.own(tier) {
                return Ok(());
            }
            head = head.header(policy_name(place), format!("k{}", request.key(place)));
        }
        let (parts, ()) = head.body(()).expect("a request").into_parts();
        for (limiter, status) in limiters.into_iter().zip(statuses) {
            let explanation = limiter.explain(&parts).await;
            if let (Ok(explanation), Ok(status)) = (&explanation, status) {
                OpResult::check_explanation(explanation, status)?;
            } else {
                return Err(format!("{explanation:?}\n{status:?}"));
            }
        }
        Ok(())
    }

    pub(super) async fn reset(&mut self, key: usize) -> Outcome {
        let request = Request::of(key);
        let [redis, memory] = self.limiters(&request);
        let by_redis = OpResult::of_status(&redis.reset(self.keys_of(key)).await)?;
        let by_memory = OpResult::of_status(&memory.reset(self.keys_of(key)).await)?;
        let quotas = self.quotas(&request, true);
        let model = self.model.as_mut().map(|model| {
            let result = model.peek(&request, &quotas);
            model.reset(key);
            result
        });
        for (place, policy) in self.policies.iter().enumerate() {
            if policy.is_present() {
                self.keys.remove((place, key_of(key, place)));
            }
        }
        // The next window may open within 2 ms of this one.
        self.drop_decisions_of_windows().await;
        compare(&by_redis, &by_memory, model.as_ref())
    }

    /// Drops all decisions if a policy's window has no name but its end: Redis takes one that ends within 2 ms of another for the
    /// same, and refunds charges of either.
    pub(super) async fn drop_decisions_of_windows(&mut self) {
        let mut policies = self.policies.iter();
        if policies.all(|policy| policy.strategy.dates_itself()) {
            return;
        }
        for side in [&mut self.redis, &mut self.memory] {
            side.decisions.clear();
        }
        if let Some(model) = &mut self.model {
            model.drop_decisions();
        }
        self.let_it_be_done().await;
        self.change_all();
    }

    pub(super) async fn refund(&mut self, of: usize, units: u64) -> Outcome {
        if self.redis.decisions.is_empty() {
            return Ok(());
        }
        let (of, clone) = (of % self.redis.decisions.len(), of % 2 == 1);
        let mut given = Vec::new();
        for side in [&mut self.redis, &mut self.memory] {
            let Held::Admission(admission) = &side.decisions[of] else {
                return Ok(());
            };
            // A clone refunds what the admission itself has not.
            let refunds = if clone {
                admission.clone().refund(units).await
            } else {
                admission.refund(units).await
            };
            let refunds = refunds.map_err(|error| error.to_string())?;
            let units = refunds.iter().map(|refund| refund.units());
            given.push(units.collect::<Vec<_>>());
        }
        self.change_all();
        // What a refund removes counts everywhere as if it had never been charged.
        drop(self.keys.check_keys(self.server, self.now)?);
        let [redis, memory] = [0, 1].map(|side| given[side].iter().filter(|units| **units > 0));
        if !redis.eq(memory) {
            return Err(format!(
                "given on Redis {:?}, in process {:?}",
                given[0], given[1]
            ));
        }
        if let Some(model) = &mut self.model {
            let model = model.refund(of, units);
            if model != given[0] {
                return Err(format!(
                    "given on both stores {:?}, by definition {model:?}",
                    given[0]
                ));
            }
        }
        Ok(())
    }

    pub(super) async fn settle(&mut self, of: usize, how: Settlement, units: u64) -> Outcome {
        if self.redis.decisions.is_empty() {
            return Ok(());
        }
        let of = of % self.redis.decisions.len();
        let mut outcomes = Vec::new();
        for side in [&mut self.redis, &mut self.memory] {
            let Held::Admission(admission) = &side.decisions[of] else {
                outcomes.push(None);
                continue;
            };
            let outcome = match how {
                Settlement::Charge => charge_every(admission, units).await,
                Settlement::Refund => refund_every(admission, units).await,
                Settlement::Settle => settle_every(admission, units).await,
            };
            outcomes.push(Some(outcome.map_err(|error| error.to_string())));
        }
        self.change_all();
        if outcomes[0] != outcomes[1] {
            return Err(format!("settled on Redis and in process: {outcomes:?}"));
        }
        if let Some(model) = &mut self.model
            && outcomes[0].is_some()
            && !model.settle(of, how, units)
        {
            self.model = None;
        }
        Ok(())
    }

    /// Drops the admission, and with it what it holds.
    pub(super) async fn drop_decision(&mut self, of: usize) {
        if self.redis.decisions.is_empty() {
            return;
        }
        let of = of % self.redis.decisions.len();
        drop(self.redis.decisions.swap_remove(of));
        drop(self.memory.decisions.swap_remove(of));
        if let Some(model) = &mut self.model {
            model.drop_decision(of);
        }
        self.let_it_be_done().await;
        self.change_all();
    }

    /// Waits until Redis has run all detached operations, so that they are done before the clock moves: requests that
    /// share a connection run in order.
    async fn let_it_be_done(&mut self) {
        let [redis, _] = self.limiters(&Request::of(UNUSED));
        drop(redis.peek(key_named(UNUSED)).await.expect("a response"));
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
    }

    pub(super) async fn block(&mut self, key: usize, block: Block) -> Outcome {
        let keys = self.keys_of(key);
        let mut outcomes = Vec::new();
        for limiter in self.limiters(&Request::of(key)) {
            let (keys, time) = (keys.clone(), Duration::from_millis);
            outcomes.push(match block {
                Block::For(ms) => limiter.block(keys, time(ms)).await,
                Block::ForAtLeast(ms) => limiter.prolong_block(keys, time(ms)).await,
                Block::End => limiter.unblock(keys).await.map(drop),
            });
        }
        self.change_all();
        let [redis, memory] =
            [0, 1].map(|side| outcomes[side].as_ref().err().map(ToString::to_string));
        if redis == memory {
            Ok(())
        } else {
            Err(format!("on Redis {redis:?}, in process {memory:?}"))
        }
    }

    pub(super) fn spoil(&mut self, of: usize, ms: Option<u64>) {
        let steps = &self.history.steps;
        let back = steps.iter().any(|step| step.wait < 0);
        // A ban whose key is repaired counts what is left of it from then on, if the clock steps back.
        let policies = self.policies.iter();
        let spoils = policies.map(|policy| {
            let is_dated = policy.is_present() && policy.strategy.dates_itself();
            is_dated && !(back && policy.is_ban())
        });
        if let Some(place) = self.keys.pick(of, &spoils.collect::<Vec<_>>()) {
            self.keys.spoil(self.server, place, ms);
        }
    }
}

/// Whether a key that is exempt from one policy might be decided by the leases of the others.
fn has_leases(policies: &[PolicySpec]) -> bool {
    policies.iter().any(|policy| policy.lease.is_some())
}

fn compare(redis: &OpResult, memory: &OpResult, model: Option<&OpResult>) -> Outcome {
    if redis != memory {
        return Err(format!("on Redis {redis:?}\nin process {memory:?}"));
    }
    match model {
        Some(model) if *model != memory.bare() => {
            let memory = memory.bare();
            Err(format!(
                "on both stores {memory:?}\nby definition {model:?}"
            ))
        }
        _ => Ok(()),
    }
}
