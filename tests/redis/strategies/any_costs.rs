//! Costs over all of `u64`, in every operation, against a model of a quota while the clock is frozen.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use proptest::{prelude::*, sample::Index};
use tollgate::{Admission, Decision, Limiter, Policy, RateLimitLayer, Refund, RetryAfter, extract};

use crate::strategies::charges::charge;
use crate::strategies::{
    cost_model::{Number, Quota, numbers},
    costs::{cost_field, send_through},
    every_policy::{charge_every, refund_every, settle_every},
    properties::{any_strategy, check, runtime},
    support::{KEY, START, StrategyKind, World, admitted_by_store},
};

#[derive(Clone, Debug)]
enum Step {
    Check {
        cost: Number,
        times: Number,
    },
    /// One request, of which the admission is kept.
    Admit(Number),
    /// Through a layer.
    Send(Number),
    /// At once: on Redis in one script call.
    AtOnce(Vec<Number>),
    Peek(Number),
    Charge(Number),
    /// Gives units of a charge so far back.
    Refund(Index, Number),
    Settle(Index, How, Number),
}

#[derive(Clone, Copy, Debug)]
enum How {
    Charge,
    Refund,
    Settle,
}

/// What is beside the policy `p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Another one.
    Other,
    /// Another one, which charges what is rejected.
    Counts,
    /// The policy itself charges what is rejected.
    OwnCounts,
    /// The policy itself is in the shadow of another one.
    Shadow,
}

fn step() -> impl Strategy<Value = Step> {
    let times = prop_oneof![2 => Just(Number::Exactly(1)), 1 => numbers()];
    let how = prop::sample::select(&[How::Charge, How::Refund, How::Settle][..]);
    prop_oneof![
        3 => (numbers(), times).prop_map(|(cost, times)| Step::Check { cost, times }),
        2 => numbers().prop_map(Step::Admit),
        2 => numbers().prop_map(Step::Send),
        2 => prop::collection::vec(numbers(), 2..8).prop_map(Step::AtOnce),
        1 => numbers().prop_map(Step::Peek),
        1 => numbers().prop_map(Step::Charge),
        3 => (any::<Index>(), numbers()).prop_map(|(of, units)| Step::Refund(of, units)),
        3 => (any::<Index>(), how, numbers()).prop_map(|(of, how, to)| Step::Settle(of, how, to)),
    ]
}

fn beside() -> impl Strategy<Value = Beside> {
    let all = [
        Beside::Nothing,
        Beside::Other,
        Beside::Counts,
        Beside::OwnCounts,
        Beside::Shadow,
    ];
    prop::sample::select(all.to_vec())
}

/// A small quota, and about the largest.
fn quota(strategy: StrategyKind, large: bool) -> (&'static str, u64) {
    match strategy {
        _ if !large => ("10/min", 10),
        StrategyKind::Gcra | StrategyKind::Bucket => ("1000000/s burst 1000000000", 1_000_000_000),
        StrategyKind::Fixed | StrategyKind::Calendar => {
            ("999999999999999/min", 999_999_999_999_999)
        }
        StrategyKind::Sliding(_) => ("1000000000/min", 1_000_000_000),
        StrategyKind::List | StrategyKind::Log => ("500/min", 500),
    }
}

/// What was charged, and can be refunded.
struct Charged {
    charger: Charger,
    /// Of each policy.
    left: Vec<u64>,
    /// Which shadows rejected it.
    skipped: Vec<bool>,
}

#[expect(clippy::large_enum_variant, reason = "there are few")]
enum Charger {
    Decision(Decision),
    Admission(Admission),
}

struct Case {
    limiter: Limiter,
    layer: RateLimitLayer,
    quotas: Vec<Quota>,
    charged: Vec<Charged>,
    text: String,
}

impl Case {
    fn new(world: &World, strategy: StrategyKind, large: bool, beside: Beside) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |role: &str| format!("{role}{number}");
        let (text, capacity) = quota(strategy, large);
        let mut own = Quota::of(capacity);
        let mut policy = strategy.policy(&name("p"), text);
        let mut other = StrategyKind::Gcra.policy(&name("other"), "7/min");
        let mut others = Quota::of(7);
        match beside {
            Beside::Nothing | Beside::Other => {}
            Beside::Counts => {
                other = other.charge_rejected(true);
                others.counts = Some(7);
            }
            Beside::OwnCounts => {
                let grows = matches!(strategy, StrategyKind::List | StrategyKind::Log);
                policy = policy.charge_rejected(true);
                own.counts = Some(if grows { 0 } else { capacity });
            }
            Beside::Shadow => {
                policy = policy.shadow();
                own.is_shadow = true;
            }
        }
        let each = |policy: Policy| policy.key(extract::global()).cost_with(cost_field);
        let (policies, quotas) = match beside {
            Beside::Nothing | Beside::OwnCounts => (vec![policy], vec![own]),
            // Decisions list shadows last.
            Beside::Other | Beside::Counts | Beside::Shadow => {
                (vec![other, policy], vec![others, own])
            }
        };
        let limiter = world.limiter(policies.into_iter().map(each));
        Self {
            layer: RateLimitLayer::new(limiter.clone()),
            limiter,
            quotas,
            charged: Vec::new(),
            text: format!("{strategy:?} {text} beside {beside:?} on {}", world.name()),
        }
    }

    /// The number as it is meant for this case.
    fn number(&self, number: Number) -> u64 {
        match number {
            Number::Exactly(number) => number,
            Number::Near(more) => {
                let capacity = self.quotas.last().map_or(0, |own| own.capacity);
                capacity.saturating_add_signed(more)
            }
        }
    }

    /// What equal requests take: how many are admitted, and what each policy charges for them.
    fn take(&mut self, cost: u64, times: u64) -> (u64, Vec<u64>) {
        let live = self.quotas.iter().filter(|quota| !quota.is_shadow);
        let admitted = live.map(|quota| quota.fits(cost, times)).min();
        let admitted = admitted.expect("a policy");
        let quotas = self.quotas.iter_mut();
        let charged = quotas.map(|quota| {
            let fits = match quota.is_shadow {
                true => quota.fits(cost, admitted),
                false => admitted,
            };
            let charged = fits * cost;
            quota.used += charged;
            let (rejected, left) = (times - admitted, i128::from(quota.capacity));
            let left = left - i128::from(quota.used);
            if let Some(debt) = quota.counts
                && rejected > 0
                && left < i128::from(cost)
            {
                let most = (left + i128::from(debt)).max(0) as u128;
                let denied = u128::from(rejected) * u128::from(cost);
                quota.used += denied.min(most) as u64;
            }
            charged
        });
        (admitted, charged.collect())
    }

    /// Takes for one request; returns whether it is admitted, and what is kept of it.
    fn take_one(&mut self, cost: u64) -> (bool, Vec<u64>, Vec<bool>) {
        let (admitted, left) = self.take(cost, 1);
        let shadows = self.quotas.iter().zip(&left);
        let skipped = shadows.map(|(quota, charged)| quota.is_shadow && cost > 0 && *charged == 0);
        let skipped = skipped.collect();
        (admitted > 0, left, skipped)
    }

    async fn run(&mut self, step: &Step) {
        let text = format!("{step:?}: {}", self.text);
        match step {
            Step::Check { cost, times } => {
                let (cost, sent) = (self.number(*cost), self.number(*times));
                // One call is for at most this many.
                let times = sent.min(u64::from(u32::MAX));
                let before = self.quotas.clone();
                let decision = self.limiter.check(KEY).cost(cost).times(sent).await;
                let (admitted, left) = self.take(cost, times);
                assert_eq!(admitted_by_store(&decision), admitted > 0, "{text}");
                assert_eq!(decision.admitted(), admitted, "{text}");
                if before.iter().any(|q| !q.is_shadow && cost > q.capacity) {
                    assert_eq!(decision.retry_after(), RetryAfter::Never, "{text}");
                }
                let skipped = vec![false; left.len()];
                let charger = Charger::Decision(decision);
                self.charged.push(Charged {
                    charger,
                    left,
                    skipped,
                });
            }
            Step::Admit(cost) => {
                let cost = self.number(*cost);
                let decision = self.limiter.check(KEY).cost(cost).await;
                let (admits, left, skipped) = self.take_one(cost);
                assert_eq!(admitted_by_store(&decision), admits, "{text}");
                if let Ok(admission) = decision.into_result() {
                    let charger = Charger::Admission(admission);
                    self.charged.push(Charged {
                        charger,
                        left,
                        skipped,
                    });
                }
            }
            Step::Send(cost) => {
                let cost = self.number(*cost);
                let (admits, ..) = self.take_one(cost);
                let status = send_through(&self.layer, cost).await;
                assert_eq!(status, if admits { 200 } else { 429 }, "{text}");
            }
            Step::AtOnce(costs) => self.at_once(costs, &text).await,
            Step::Peek(cost) => {
                let cost = self.number(*cost);
                let seen = self.limiter.peek(KEY).cost(cost).await.expect("a response");
                let mut live = self.quotas.iter().filter(|quota| !quota.is_shadow);
                let fits = live.all(|quota| quota.left() >= cost);
                assert_eq!(seen.would_admit(), fits, "{text}");
            }
            Step::Charge(units) => {
                let units = self.number(*units);
                let decision = charge(&self.limiter, KEY, units).await;
                let left = self.quotas.iter_mut().map(|quota| quota.force(units));
                self.charged.push(Charged {
                    left: left.collect(),
                    charger: Charger::Decision(decision),
                    skipped: vec![false; self.quotas.len()],
                });
            }
            Step::Refund(of, units) => self.settle(of, How::Refund, *units, &text).await,
            Step::Settle(of, how, units) => self.settle(of, *how, *units, &text).await,
        }
        let seen = self.limiter.peek(KEY).cost(1).await.expect("a response");
        let remaining: Vec<_> = seen.policies().chain(seen.shadows()).collect();
        let remaining: Vec<_> = remaining.iter().map(|policy| policy.remaining()).collect();
        let left: Vec<_> = self.quotas.iter().map(Quota::left).collect();
        assert_eq!(remaining, left, "{text}");
    }

    /// In whatever order requests are decided, no more is admitted than there is, and nothing that fits is rejected.
    async fn at_once(&mut self, costs: &[Number], text: &str) {
        if self
            .quotas
            .iter()
            .any(|quota| quota.is_shadow || quota.counts.is_some())
        {
            return;
        }
        let costs: Vec<_> = costs.iter().map(|cost| self.number(*cost)).collect();
        let checks = costs.iter().map(|cost| {
            let check = self.limiter.check(KEY).cost(*cost);
            async move { admitted_by_store(&check.await) }
        });
        let admitted = join_all(checks).await;
        let left = |case: &Self| case.quotas.iter().map(Quota::left).min().unwrap_or(0);
        let before = left(self);
        let mut sum = 0_u64;
        for (cost, _) in costs
            .iter()
            .zip(&admitted)
            .filter(|(_, admitted)| **admitted)
        {
            sum = sum.saturating_add(*cost);
        }
        assert!(sum <= before, "{text}: {admitted:?} of {before}");
        for quota in &mut self.quotas {
            quota.used += sum;
        }
        let after = left(self);
        for (cost, admitted) in costs.iter().zip(&admitted) {
            assert!(
                *admitted || *cost > after,
                "{text}: {cost} fits into {after}"
            );
        }
    }

    /// Charges or refunds by an earlier charge.
    async fn settle(&mut self, of: &Index, how: How, number: Number, text: &str) {
        let number = self.number(number);
        if self.charged.is_empty() {
            return;
        }
        let place = of.index(self.charged.len());
        let charged = &mut self.charged[place];
        match (&mut charged.charger, how) {
            (Charger::Decision(decision), _) => {
                let refunds = decision.refund(number).await.expect("a refund");
                let given: Vec<_> = refunds.iter().map(Refund::units).collect();
                let live = charged.left.iter().zip(&self.quotas);
                let live = live.filter(|(_, quota)| !quota.is_shadow);
                let expected: Vec<_> = live.map(|(left, _)| number.min(*left)).collect();
                assert_eq!(given, expected, "{text}");
            }
            (Charger::Admission(admission), How::Charge) => {
                charge_every(admission, number).await.expect("a charge");
            }
            (Charger::Admission(admission), How::Refund) => {
                refund_every(admission, number).await.expect("a refund");
            }
            (Charger::Admission(admission), How::Settle) => {
                settle_every(admission, number).await.expect("a response");
            }
        }
        let refunds = matches!(charged.charger, Charger::Decision(_)) || matches!(how, How::Refund);
        for (place, quota) in self.quotas.iter_mut().enumerate() {
            let left = &mut charged.left[place];
            let (more, back) = match how {
                _ if refunds => (0, number),
                How::Charge => (number, 0),
                _ => (number.saturating_sub(*left), left.saturating_sub(number)),
            };
            if charged.skipped[place] {
                continue;
            }
            let back = back.min(*left);
            quota.used -= back;
            *left = *left - back + quota.force(more);
        }
    }
}

#[test]
fn no_cost_is_admitted_beyond_the_quota_or_refunds_units() {
    let runtime = runtime();
    for world in World::both() {
        world.set(START);
        let steps = prop::collection::vec(step(), 1..12);
        check(
            250,
            (any_strategy(), any::<bool>(), beside(), steps),
            |(strategy, large, beside, steps)| {
                let mut case = Case::new(&world, strategy, large, beside);
                runtime.block_on(async {
                    for step in &steps {
                        case.run(step).await;
                    }
                    // Its keys are in one shard with those of the other cases, which must not fill up.
                    let _ = case.limiter.reset(KEY).await.expect("a response");
                });
            },
        );
    }
}
