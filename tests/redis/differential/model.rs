//! GCRA as it is defined, in integers without bounds: what both stores are held against.

use std::{collections::HashMap, time::Duration};

use crate::differential::{
    history::{PolicySpec, Rate, Request},
    response::{OpResult, Under},
};

/// Of 50 ns.
const UNITS_PER_MICRO: i128 = 20;

#[derive(Debug)]
pub(crate) struct Model {
    policies: Vec<Vec<Cells>>,
    /// Of each policy, the longest refill of the quotas that it declares or has met.
    refills: Vec<i128>,
    /// Theoretical arrival times, by policy and key.
    tats: HashMap<(usize, usize), i128>,
    /// What each decision charged, under each policy.
    charged: Vec<Vec<Receipt>>,
    now: i128,
}

/// A quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cells {
    interval: i128,
    burst: i128,
    /// How long the burst takes without leases, in whole microseconds: what tiers are compared by.
    refill_unleased: i128,
}

#[derive(Clone, Copy, Debug)]
struct Receipt {
    key: usize,
    cells: Cells,
    at: i128,
    left: i128,
}

impl Cells {
    /// Of a quota under a policy whose units are spent so much later than their charge: what refills meanwhile is taken off the
    /// burst.
    fn leased(rate: Rate, spread: u64) -> Self {
        let cells = Self::of(rate);
        let ticks = i128::from(spread) * UNITS_PER_MICRO;
        let reserve = (ticks + cells.interval - 1) / cells.interval;
        Self {
            burst: cells.burst - reserve,
            ..cells
        }
    }

    fn of(rate: Rate) -> Self {
        let quota = rate.quota();
        let period = i128::from(rate.period()) * UNITS_PER_MICRO;
        let units = i128::from(quota.amount());
        let cells = Self {
            interval: (period + units - 1) / units,
            burst: quota.capacity().into(),
            refill_unleased: 0,
        };
        Self {
            refill_unleased: cells.refill(),
            ..cells
        }
    }

    fn tolerance(self) -> i128 {
        self.interval * self.burst
    }

    /// How long a full burst takes, in whole microseconds.
    fn refill(self) -> i128 {
        (self.tolerance() + UNITS_PER_MICRO - 1) / UNITS_PER_MICRO * UNITS_PER_MICRO
    }

    fn under(self, ahead: i128, cost: u64) -> Under {
        let over = ahead + i128::from(cost) * self.interval - self.tolerance();
        let wait = match over {
            _ if cost == 0 => Some(Duration::ZERO),
            _ if i128::from(cost) > self.burst => None,
            over => Some(duration(over.max(0))),
        };
        Under {
            limit: self.burst as u64,
            cost,
            remaining: ((self.tolerance() - ahead).max(0) / self.interval) as u64,
            wait,
            reset: duration(ahead),
            rejects: None,
        }
    }
}

/// Rounded up to microseconds.
fn duration(units: i128) -> Duration {
    let micros = (units + UNITS_PER_MICRO - 1) / UNITS_PER_MICRO;
    Duration::from_micros(micros as u64)
}

impl Model {
    pub(crate) fn new(policies: &[PolicySpec]) -> Self {
        let cells = |policy: &PolicySpec| -> Vec<_> {
            let spread = policy.spread();
            let quotas = policy.quotas.iter();
            quotas.map(|rate| Cells::leased(*rate, spread)).collect()
        };
        let cells: Vec<Vec<_>> = policies.iter().map(cells).collect();
        let refills = policies.iter().zip(&cells).map(|(policy, cells)| {
            let declared = cells
                .iter()
                .skip(if policy.declared { 0 } else { cells.len() });
            declared
                .chain(&cells[..1])
                .map(|cells| cells.refill_unleased)
                .max()
        });
        Self {
            refills: refills.map(|refill| refill.unwrap_or(0)).collect(),
            policies: cells,
            tats: HashMap::new(),
            charged: Vec::new(),
            now: 0,
        }
    }

    pub(crate) fn set(&mut self, micros: u64) {
        self.now = i128::from(micros) * UNITS_PER_MICRO;
    }

    /// Removes what is over.
    pub(crate) fn forget(&mut self, policy: usize, key: usize) {
        self.tats.remove(&(policy, key));
    }

    /// The quotas that a request is counted by, which are registered from then on.
    pub(crate) fn cells(&mut self, request: &Request) -> Vec<Cells> {
        let policies = self.policies.iter().enumerate();
        let cells = policies.map(|(place, tiers)| {
            let tier = request.tiers.get(place).copied().unwrap_or(0);
            tiers[tier % tiers.len()]
        });
        let cells: Vec<_> = cells.collect();
        for (refill, cells) in self.refills.iter_mut().zip(&cells) {
            *refill = (*refill).max(cells.refill_unleased);
        }
        cells
    }

    /// How far ahead the arrival time lies. One that is further ahead than any debt is cut.
    fn ahead(&mut self, place: (usize, usize), cells: Cells) -> i128 {
        let Some(tat) = self.tats.get_mut(&place) else {
            return 0;
        };
        let longest = self.refills[place.0];
        let longest = if longest > cells.refill() {
            longest
        } else {
            cells.tolerance()
        };
        if *tat - self.now > 2 * longest {
            *tat = self.now + cells.tolerance();
        }
        (*tat - self.now).max(0)
    }

    fn add(&mut self, place: (usize, usize), ahead: i128, units: i128, cells: Cells) {
        if units > 0 {
            let tat = self.now + ahead + units * cells.interval;
            self.tats.insert(place, tat);
        }
    }

    fn result(&mut self, request: &Request, cost: u64, admitted: Option<u64>) -> OpResult {
        let cells = self.cells(request);
        let under = cells.into_iter().enumerate().map(|(policy, cells)| {
            let ahead = self.ahead((policy, request.key(policy)), cells);
            Some(cells.under(ahead, cost))
        });
        let under: Vec<_> = under.collect();
        OpResult::new(admitted, under)
    }

    pub(crate) fn check(&mut self, request: &Request) -> OpResult {
        let cost = request.cost.unwrap_or(1);
        let all = self.cells(request);
        let mut admitted = i128::from(request.times.min(u32::MAX.into()));
        let mut ahead = Vec::new();
        for (policy, cells) in all.iter().enumerate() {
            ahead.push(self.ahead((policy, request.key(policy)), *cells));
            if cost > 0 {
                let step = i128::from(cost) * cells.interval;
                admitted = admitted.min((cells.tolerance() - ahead[policy]).max(0) / step);
            }
        }
        let units = admitted * i128::from(cost);
        let mut receipts = Vec::new();
        for (policy, cells) in all.into_iter().enumerate() {
            let key = request.key(policy);
            self.add((policy, key), ahead[policy], units, cells);
            let (at, left) = (self.now, units);
            let receipt = Receipt {
                key,
                cells,
                at,
                left,
            };
            receipts.push(receipt);
        }
        self.charged.push(receipts);
        self.result(request, cost, Some(admitted as u64))
    }

    /// Notes a decision that charged nothing.
    pub(crate) fn skip(&mut self) {
        self.charged.push(Vec::new());
    }

    pub(crate) fn charge(&mut self, request: &Request) {
        let cost = i128::from(request.cost.unwrap_or(1));
        let mut receipts = Vec::new();
        for (policy, cells) in self.cells(request).into_iter().enumerate() {
            let key = request.key(policy);
            let ahead = self.ahead((policy, key), cells);
            let room = (cells.tolerance() - ahead).div_euclid(cells.interval);
            let left = cost.min(room + cells.burst).max(0);
            self.add((policy, key), ahead, left, cells);
            let at = self.now;
            receipts.push(Receipt {
                key,
                cells,
                at,
                left,
            });
        }
        self.charged.push(receipts);
    }

    pub(crate) fn peek(&mut self, request: &Request) -> OpResult {
        self.result(request, request.cost.unwrap_or(1), None)
    }

    pub(crate) fn reset(&mut self, key: usize) {
        for policy in 0..self.policies.len() {
            self.forget(policy, crate::differential::history::key_of(key, policy));
        }
    }

    pub(crate) fn drop_decision(&mut self, of: usize) {
        self.charged.swap_remove(of);
    }

    /// Refunds, to the fraction, what has not refilled.
    pub(crate) fn refund(&mut self, of: usize, units: u64) -> Vec<u64> {
        let mut given = Vec::new();
        for policy in 0..self.policies.len() {
            let Receipt {
                key,
                cells,
                at,
                left,
            } = self.charged[of][policy];
            let want = i128::from(units).min(left);
            if want == 0 {
                given.push(0);
                continue;
            }
            let held = left * cells.interval - (self.now - at).max(0);
            let back = held
                .min(i128::from(units).min(left) * cells.interval)
                .max(0);
            let ahead = self.ahead((policy, key), cells);
            if back > 0 && ahead > 0 {
                let tat = self.now + (ahead - back).max(0);
                self.tats.insert((policy, key), tat);
            }
            let back = (back + cells.interval - 1) / cells.interval;
            self.charged[of][policy].left -= back;
            given.push(back as u64);
        }
        given
    }
}
