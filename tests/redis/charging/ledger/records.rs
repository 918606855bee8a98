//! What two processes record, and what the store must hold then.

use serde::{Deserialize, Serialize};
use tollgate_tests::prelude::*;

use super::store::{Counts, Receipt};

/// What is done about a request, in units.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum Action {
    /// Charged on arrival, if there is room.
    Acquire(i64),
    /// Charged past what is left.
    Charge(i64),
    /// Refunds; [`ALL`] is all that is charged.
    Refund(i64),
    /// Charges or refunds, until this many units are charged.
    Settle(i64),
    /// Settles at the first number, beyond the capacity, and then at the second, which is fewer than before.
    Debt(i64, i64),
}

pub(super) const ALL: i64 = i64::MAX / 4;

/// What a process writes down, with the number of the request that it is about.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum Record {
    /// It is about to be done.
    Starts(Action),
    /// The action is done.
    Done,
    /// It was rejected, which costs nothing.
    Rejected,
    /// It was sent, and will be done; no task waits for it.
    Sent,
    /// Its future was dropped. Nothing of an acquisition stays; a charge is in flight, and of a refund the part of the
    /// newest charge.
    Dropped,
}

/// What a request is charged.
#[derive(Debug, Default)]
struct Request {
    /// The oldest first.
    receipts: Vec<Receipt>,
}

impl Request {
    fn net(&self) -> i64 {
        let receipts = self.receipts.iter().map(|receipt| receipt.left as i64);
        receipts.sum()
    }
}

/// The least and the most that the store must hold. They are the same until a process is killed.
#[derive(Debug)]
pub(super) struct Expected {
    least: Counts,
    most: Counts,
    requests: HashMap<u64, Request>,
    /// Actions that have started and have no result yet.
    pending: HashMap<u64, Action>,
    /// What was sent, by request: should it not have been done, what is not charged, or how much more is.
    in_flight: Vec<(u64, Option<Receipt>, i64)>,
}

impl Expected {
    pub(super) fn new(strategy: StrategyKind, now: i64) -> Self {
        Self {
            least: Counts::new(strategy, now),
            most: Counts::new(strategy, now),
            requests: HashMap::new(),
            pending: HashMap::new(),
            in_flight: Vec::new(),
        }
    }

    pub(super) fn go_to(&mut self, now: i64) {
        self.least.go_to(now);
        self.most.go_to(now);
    }

    /// The least and the most that can be used now.
    pub(super) fn used(&mut self) -> (i64, i64) {
        (self.least.used(), self.most.used())
    }

    #[track_caller]
    pub(super) fn record(&mut self, request: u64, record: Record) {
        if let Record::Starts(what) = record {
            let before = self.pending.insert(request, what);
            assert_eq!(before, None, "two things at once for request {request}");
            return;
        }
        let what = self.pending.remove(&request).expect("what was asked for");
        let what = self.resolve(request, what);
        match (record, what) {
            (Record::Starts(_) | Record::Rejected, _) => {}
            (Record::Done, _) => self.apply(request, what, true, (true, true)),
            (Record::Dropped, Action::Acquire(units)) => {
                self.in_flight.push((request, None, units));
            }
            (Record::Dropped | Record::Sent, Action::Charge(units)) => {
                let charged = self.least.charge(units);
                self.in_flight.push((request, Some(charged), 0));
                self.most.charge(units);
                let request = self.requests.entry(request).or_default();
                request.receipts.push(charged);
            }
            (Record::Dropped, Action::Refund(units)) => {
                let known = self.requests.get(&request).into_iter();
                let mut receipts = known.flat_map(|request| &request.receipts);
                let newest = receipts.rfind(|receipt| receipt.left > 0);
                let units = newest.map_or(0, |newest| units.min(newest.left as i64));
                self.in_flight.push((request, None, units));
                self.apply(request, Action::Refund(units), true, (true, true));
            }
            (Record::Dropped | Record::Sent, _) => {
                self.in_flight.push((request, None, self.net(request)));
                self.apply(request, what, true, (true, true));
            }
        }
    }

    /// Nothing is in flight any more.
    #[track_caller]
    pub(super) fn assert_idle(&mut self) {
        assert_eq!(self.pending, HashMap::new());
        self.in_flight.clear();
    }

    /// A process was killed: what it was about may have been done or not. Returns what its requests were charged.
    pub(super) fn kill_process(&mut self, is_its: impl Fn(u64) -> bool) -> i64 {
        let pending = self.pending.extract_if(|request, _| is_its(*request));
        for (request, what) in pending.collect::<Vec<_>>() {
            let (most, least) = match what {
                Action::Debt(most, least) => (Action::Settle(most), Action::Settle(least)),
                what => (what, what),
            };
            let (most, least) = (self.resolve(request, most), self.resolve(request, least));
            if matches!(most, Action::Acquire(_) | Action::Charge(_)) {
                self.apply(request, most, false, (false, true));
            }
            if matches!(least, Action::Refund(_)) {
                self.apply(request, least, false, (true, false));
            }
        }
        for (_, less, more) in self.in_flight.extract_if(.., |sent| is_its(sent.0)) {
            if let Some(less) = less {
                self.least.refund(less, less.left as i64);
            }
            self.most.charge(more);
        }
        let requests = self.requests.iter();
        let requests = requests.filter(|(request, _)| is_its(**request));
        requests.map(|(_, request)| request.net()).sum()
    }

    fn net(&self, request: u64) -> i64 {
        self.requests.get(&request).map_or(0, Request::net)
    }

    /// What settling comes to.
    fn resolve(&self, request: u64, what: Action) -> Action {
        match (what, self.net(request)) {
            (Action::Settle(units), net) if units > net => Action::Charge(units - net),
            (Action::Settle(units), net) => Action::Refund(net - units),
            (what, _) => what,
        }
    }

    /// Applies an action to the lower bound, the upper bound, or both. A `confirmed` action has a known result.
    fn apply(
        &mut self,
        request: u64,
        what: Action,
        confirmed: bool,
        (at_least, at_most): (bool, bool),
    ) {
        let what = match what {
            // Whatever it was for a while.
            Action::Debt(_, then) => self.resolve(request, Action::Settle(then)),
            what => what,
        };
        let mut counts = Vec::with_capacity(2);
        if at_least {
            counts.push(&mut self.least);
        }
        if at_most {
            counts.push(&mut self.most);
        }
        let receipts = &mut self.requests.entry(request).or_default().receipts;
        match what {
            Action::Acquire(units) | Action::Charge(units) => {
                let charged: Vec<_> = counts.into_iter().map(|own| own.charge(units)).collect();
                receipts.extend(charged.first().filter(|_| at_least));
            }
            Action::Refund(mut units) => {
                for receipt in receipts.iter_mut().rev() {
                    let want = units.min(receipt.left as i64);
                    let mut refunded = 0;
                    for counts in &mut counts {
                        refunded = counts.refund(*receipt, want);
                    }
                    // Units that were not refunded stay, if that is known.
                    receipt.left -= i128::from(if confirmed { refunded } else { want });
                    units -= want;
                }
            }
            Action::Settle(_) | Action::Debt(..) => {}
        }
    }
}
