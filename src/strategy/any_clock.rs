//! Strategies count units of any number by a clock that shows any instant, without overflow.

use std::sync::Arc;

use super::{ChargeReceipt, Rule, built_in::BUILT_IN};
use crate::{
    ManualClock, MemoryStore,
    clock::Timestamp,
    key::Key,
    store::{CounterMode, CounterOp, LimitHandle, Op, OpResult, Store, StoreResponse, Units},
};

const INSTANTS: [i64; 9] = [
    i64::MIN,
    i64::MIN + 1,
    -1,
    0,
    1_800_000_000_000_000,
    i64::MAX - 3_600_000_000,
    i64::MAX - 1_000_000,
    i64::MAX - 1,
    i64::MAX,
];

const UNITS: [u64; 4] = [1, 3, 11, u64::MAX];

/// A store of one key, by a clock that is set.
struct Scene {
    clock: ManualClock,
    store: MemoryStore,
    limit: LimitHandle,
}

impl Scene {
    fn new(rule: Arc<dyn Rule>, at: i64) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(at));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limit = store.register("p", rule).expect("a limit");
        Self {
            clock,
            store,
            limit,
        }
    }

    fn execute(&self, op: Op, units: u64, receipt: Option<ChargeReceipt>) -> OpResult {
        let mode = match self.limit.info().counts_rejections {
            true => CounterMode::CountRejections,
            false => CounterMode::ChargeRejectedToo,
        };
        let counter = CounterOp::new(&self.limit, Key::global()).with_units(Units::new(units));
        let mut counter = counter.with_mode(mode);
        counter.receipt = receipt;
        match self.store.execute(op, &[counter]) {
            StoreResponse::Ready(Ok(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    /// Charges, and refunds by a receipt; returns the receipt of the last charge.
    fn count(&self, units: u64, refunded: ChargeReceipt) -> ChargeReceipt {
        self.execute(Op::Acquire(1), units, None);
        self.execute(Op::Acquire(u32::MAX), units, None);
        let charged = self.execute(Op::Adjust, units, None);
        self.execute(Op::Adjust, units, Some(refunded));
        self.execute(Op::Adjust, 1, Some(ChargeReceipt::now(units)));
        let seen = self.execute(Op::Peek, units, None);
        for cost in UNITS {
            let snapshot = &seen.counters()[0].snapshot;
            self.limit.status(snapshot, seen.at, Units::new(cost));
        }
        let counter = &charged.counters()[0];
        let at = charged.time_of(counter);
        let window_id = self.limit.rule().window_id(&counter.snapshot, at);
        ChargeReceipt::new(at, counter.units).with_window_id(window_id)
    }
}

#[test]
fn no_instant_and_no_cost_overflows() {
    for strategy in BUILT_IN {
        let rule = strategy.example_rule(10);
        for first in INSTANTS {
            for second in INSTANTS {
                for units in UNITS {
                    let scene = Scene::new(rule.clone(), first);
                    let receipt = scene.count(units, ChargeReceipt::EMPTY);
                    scene.clock.set(Timestamp::from_micros(second));
                    let receipt = scene.count(units, receipt);
                    scene.clock.set(Timestamp::from_micros(first));
                    scene.count(units, receipt);
                }
            }
        }
    }
}
