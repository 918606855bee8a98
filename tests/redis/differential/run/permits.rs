//! The permits of a history: those that its decisions hold, and those of another process, which expire unless it renews them.

use tollgate::{store::Units, strategy::Strategy};
use tollgate_tests::prelude::*;

use super::{Outcome, Run};
use crate::differential::{
    history::{KEYS, Op as HistoryOp, PolicySpec, StrategyKind, key_named, policy_name},
    keys::PolicyKey,
};

/// How many renewals a step of the clock needs at most.
const MAX_RENEWALS: u64 = 200;

/// A permit of another process.
pub(super) struct Taken {
    place: PolicyKey,
    caller: Key,
}

/// The TTL of a policy's permits, in microseconds.
fn ttl(policy: &PolicySpec) -> Option<u64> {
    match policy.strategy {
        StrategyKind::Permits(ms) => Some(ms * 1_000),
        _ => None,
    }
}

impl Run<'_> {
    /// How often permits that are held are renewed on Redis, in microseconds; `None` without permits.
    fn renewal_interval(&self) -> Option<u64> {
        // Those of the policies before a reload are held still.
        let reloads = self.history.steps.iter().filter_map(|step| match &step.op {
            HistoryOp::Reload { policies, .. } => Some(policies),
            _ => None,
        });
        let policies = reloads.chain([&self.history.policies]).flatten();
        let shortest = policies.filter_map(ttl).min();
        shortest.map(|shortest| (shortest / 3).next_multiple_of(self.history.grain))
    }

    /// The latest instant to which the clock is moved at once.
    pub(super) fn latest(&self) -> u64 {
        let interval = self.renewal_interval();
        interval.map_or(u64::MAX, |interval| self.now + interval * MAX_RENEWALS)
    }

    /// Moves the clock. Permits that are held are renewed meanwhile; in process they do not expire.
    pub(super) async fn move_clock(&mut self, then: u64) -> Outcome {
        if let Some(interval) = self.renewal_interval() {
            while then > self.now + interval {
                self.set_clock(self.now + interval);
                self.renew_held().await?;
            }
            self.set_clock(then);
            return self.renew_held().await;
        }
        self.set_clock(then);
        Ok(())
    }

    /// Renews the permits that decisions hold on Redis. In process that only cuts the others of the key, if the clock stepped back.
    async fn renew_held(&mut self) -> Outcome {
        for (place, caller) in self.permits() {
            if !self.unheld.contains(&caller) {
                self.execute(&self.stores.0, Op::Renew, place, (caller, 1))
                    .await?;
                self.execute(&self.stores.1, Op::Renew, place, (caller, 1))
                    .await?;
                self.keys.change(place, self.now);
            }
        }
        Ok(())
    }

    /// Notes that no request holds the permits on Redis, but for those before.
    pub(super) fn leave_unheld(&mut self, before: &[(PolicyKey, Key)]) {
        let permits = self.permits().into_iter();
        let new = permits.filter(|permit| !before.contains(permit));
        self.unheld.extend(new.map(|(_, caller)| caller));
    }

    /// The permits on Redis.
    pub(super) fn permits(&self) -> Vec<(PolicyKey, Key)> {
        let mut permits = Vec::new();
        let places = (0..self.policies.len()).filter(|place| ttl(&self.policies[*place]).is_some());
        for (place, key) in places.flat_map(|place| (0..KEYS).map(move |key| (place, key))) {
            let name = format!("tg:p2:{}:{}", policy_name(place), key_named(key));
            let members = self.server.command(&["ZRANGE", &name, "0", "-1"]).list();
            let members = members.into_iter().map(testkit::Reply::text);
            let callers = members
                .filter(|member| !member.ends_with('='))
                .map(Key::new);
            permits.extend(callers.map(|caller| ((place, key), caller)));
        }
        permits
    }

    /// Takes a permit of several units on both stores, for another process.
    pub(super) async fn take(&mut self, place: PolicyKey, units: u64) -> Outcome {
        if ttl(&self.policies[place.0]).is_some() {
            let caller = Key::new(format!("taken-{}", self.taken.len()));
            self.on_both(Op::Acquire(1), place, (caller, units)).await?;
            self.taken.push(Taken { place, caller });
            self.unheld.insert(caller);
        }
        Ok(())
    }

    /// Renews the permits of the other process, unless they have expired.
    pub(super) async fn renew_taken(&mut self) -> Outcome {
        for index in 0..self.taken.len() {
            let Taken { place, caller } = self.taken[index];
            if ttl(&self.policies[place.0]).is_some() {
                self.on_both(Op::Renew, place, (caller, 1)).await?;
            }
        }
        Ok(())
    }

    async fn on_both(&mut self, op: Op, place: PolicyKey, permit: (Key, u64)) -> Outcome {
        let (redis, memory) = &self.stores;
        let redis = self.execute(redis, op, place, permit).await?;
        let memory = self.execute(memory, op, place, permit).await?;
        self.keys.change(place, self.now);
        if redis == memory {
            Ok(())
        } else {
            Err(format!(
                "{op:?} of {place:?} on Redis {redis:?}, in process {memory:?}"
            ))
        }
    }

    /// Executes an operation on a permit; returns how many requests were admitted and how many units charged or renewed.
    async fn execute(
        &self,
        store: &dyn Store,
        op: Op,
        (place, key): PolicyKey,
        (caller, units): (Key, u64),
    ) -> Outcome<(u64, u64)> {
        let policy = &self.policies[place];
        let ttl = Duration::from_micros(ttl(policy).unwrap_or_default());
        let rule = Concurrency::with_ttl(ttl).bind(&policy.quotas[0].quota(), &Terms::default());
        let limit = store.register(&policy_name(place), rule.expect("a rule"));
        let limit = limit.expect("a limit");
        let permit = CounterOp::new(&limit, key_named(key));
        let permit = permit.with_units(Units::new(units)).with_caller(caller);
        let result = match store.execute(op, &[permit]) {
            StoreResponse::Ready(result) => result,
            StoreResponse::Pending(result) => result.await,
        };
        let result = result.map_err(|error| error.to_string())?;
        Ok((result.admitted, result.counters()[0].units))
    }
}
