//! What a request was charged, and what becomes of it: settled to its true cost, refunded, or charged more.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    task::coop::consume_budget,
};

use super::{
    adjust_call::{AdjustCall, Adjusted, Adjustment, AllAdjusted, SentAdjustCall},
    decision::Decision,
    entry::Entry,
    policy_set::{PolicyRole, PolicySet},
};
use crate::{
    error::StoreError,
    observe::UnitsKind,
    store::Units,
    strategy::{ChargeReceipt, LazyStatus, RetryAfter},
    sync::lock,
};

/// Upper bound of the adjustments in one call. A policy that was charged often has as many receipts.
const MAX_ADJUSTMENTS: usize = 64;

/// The charge of an admitted request, with a line for each entry of its decision. Adjustments whose amount depends on what is charged
/// are made one after the other.
pub(crate) struct Charge {
    set: Arc<PolicySet>,
    lines: Mutex<Vec<Line>>,
    /// Held by a [`Turn`].
    turn: Arc<AsyncMutex<()>>,
    /// What follows when the adjustment in progress has ended.
    deferred: Mutex<Deferred>,
}

/// What is charged under one policy.
struct Line {
    /// Its status is that after the last adjustment.
    entry: Entry,
    /// The oldest first. A receipt keeps its index when nothing is left of it.
    receipts: SmallVec<[ChargeReceipt; 2]>,
    /// Units that are charged without a receipt: by a call in flight, or by one whose result was lost.
    pending: u64,
    /// Whether the application has charged or settled it: then the request's outcome charges nothing.
    is_settled: bool,
    /// Whether the entry's status is newer than the decision's.
    is_adjusted: bool,
}

/// Adjustments without a caller that awaits them, which are made when the one in progress has ended.
#[derive(Default)]
struct Deferred {
    /// The lines that are refunded.
    refunds: Vec<usize>,
    /// The lines whose cost is charged after the response.
    charges: Vec<usize>,
    /// The true costs of policies.
    true_costs: Vec<(Arc<str>, u64)>,
}

impl Deferred {
    fn is_empty(&self) -> bool {
        self.refunds.is_empty() && self.charges.is_empty() && self.true_costs.is_empty()
    }
}

/// The exclusive right to adjust a charge, until its calls have a result or have timed out. When it is dropped, what was deferred meanwhile
/// is sent.
struct Turn {
    charge: Arc<Charge>,
    lock: Option<OwnedMutexGuard<()>>,
}

/// Adjustments in flight that a caller awaits. If it is dropped, they are made and recorded nevertheless.
struct InFlight {
    turn: Arc<Turn>,
    steps: Vec<Step>,
    kind: UnitsKind,
    /// `None` once the result was recorded.
    call: Option<SentAdjustCall>,
}

/// One adjustment of a line.
#[derive(Clone, Copy)]
struct Step {
    line: usize,
    kind: StepKind,
}

#[derive(Clone, Copy)]
enum StepKind {
    Charge(Units),
    /// Refunds `units` of the receipt at `index`. `receipt` has its value before.
    Refund {
        index: usize,
        receipt: ChargeReceipt,
        units: u64,
    },
}

/// The difference between what is charged and a true cost, as far as no step corrects it yet.
struct Correction {
    line: usize,
    charge: Units,
    refund: u64,
    /// The index of the receipt that was refunded last: those before it, which are older, follow.
    before: usize,
}

/// The error of a settlement.
pub(crate) struct SettleFailure {
    pub(crate) error: StoreError,
    /// The policies that were not settled.
    pub(crate) failed: Vec<Arc<str>>,
}

/// The result of a refund under one policy: see [`Admission::refund`](crate::Admission::refund).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refund {
    policy: Arc<str>,
    units: u64,
}

impl Refund {
    /// The policy's name.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The number of units that were refunded. The rest of a unit that has partly refilled counts as one.
    pub fn units(&self) -> u64 {
        self.units
    }
}

impl Charge {
    /// The charge of an admitted request.
    pub(crate) fn of(decision: &Decision) -> Self {
        let lines = decision.entries.iter().map(|entry| Line {
            entry: entry.clone(),
            receipts: SmallVec::from_iter([entry.receipt]),
            pending: 0,
            is_settled: false,
            is_adjusted: false,
        });
        Self {
            set: decision.set.clone(),
            lines: Mutex::new(lines.collect()),
            turn: Arc::default(),
            deferred: Mutex::default(),
        }
    }

    /// Sets the statuses of the decision's entries to those after the last adjustment.
    pub(crate) fn update(&self, entries: &mut [Entry]) {
        for (entry, line) in entries.iter_mut().zip(&*self.lines()) {
            if line.is_adjusted {
                entry.status = line.entry.status;
            }
        }
    }

    /// Charges more units under a policy. If the future is dropped in flight, they are charged nevertheless.
    pub(crate) async fn charge(
        self: &Arc<Self>,
        policy: &str,
        units: Units,
    ) -> Result<(), StoreError> {
        if units.is_zero() {
            return Ok(());
        }
        let turn = Arc::new(self.turn().await);
        for line in self.lines_of(|entry| !self.is_permit(entry) && self.is_of(entry, policy)) {
            let steps = vec![self.charge_step(line, units)];
            turn.send(steps, UnitsKind::Charged).await?;
        }
        Ok(())
    }

    /// Refunds up to `units` of each line of a policy, or with `None` of all policies, the newest charges first. One receipt is
    /// refunded after the other: if the future is dropped, the older ones stay charged.
    pub(crate) async fn refund(
        self: &Arc<Self>,
        policy: Option<&str>,
        units: u64,
    ) -> Result<Vec<Refund>, StoreError> {
        // An in-process store responds at once: without this, a loop of refunds would starve other tasks.
        consume_budget().await;
        let turn = Arc::new(self.turn().await);
        let lines = self.lines_of(|line| policy.is_none_or(|policy| self.is_of(line, policy)));
        let mut refunds = Vec::with_capacity(lines.len());
        for line in lines {
            let units = self.refund_up_to(line, units, &turn).await?;
            if let Some(own) = self.lines().get(line).filter(|own| !own.entry.is_shadow()) {
                let policy = self.name_of(&own.entry);
                refunds.push(Refund { policy, units });
            }
        }
        Ok(refunds)
    }

    async fn refund_up_to(
        &self,
        line: usize,
        units: u64,
        turn: &Arc<Turn>,
    ) -> Result<u64, StoreError> {
        let (mut left, mut before, mut refunded) = (units, usize::MAX, 0);
        while let Some(step) = self.refund_step(line, before, left) {
            let StepKind::Refund { index, units, .. } = step.kind else {
                break;
            };
            (left, before) = (left - units, index);
            let adjusted = turn.send(vec![step], UnitsKind::Refunded).await?;
            refunded += adjusted.iter().map(|adjusted| adjusted.units).sum::<u64>();
        }
        Ok(refunded)
    }

    /// Settles policies, each to its true cost.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        true_costs: &[(Arc<str>, u64)],
    ) -> Result<(), SettleFailure> {
        let turn = Arc::new(self.turn().await);
        let mut corrections = self.corrections(true_costs);
        loop {
            let mut steps = self.next_steps(&mut corrections);
            if steps.is_empty() {
                return Ok(());
            }
            // All calls are sent before the first result is awaited.
            let calls = self.by_call(&mut steps).map(|steps| {
                let call = turn.send(steps.to_vec(), UnitsKind::SettledMore);
                (steps, call)
            });
            let (mut failed, mut error) = (Vec::new(), None);
            for (steps, call) in calls.collect::<Vec<_>>() {
                if let Err(reason) = call.await {
                    failed.extend(steps.iter().map(|step| step.line));
                    error = Some(reason);
                }
            }
            if let Some(error) = error {
                let unfinished = corrections.iter().filter(|rest| rest.refund > 0);
                failed.extend(unfinished.map(|rest| rest.line));
                let lines = self.lines();
                let failed = failed.into_iter().filter_map(|line| lines.get(line));
                let failed = failed.map(|line| self.name_of(&line.entry)).collect();
                return Err(SettleFailure { error, failed });
            }
        }
    }

    /// Settles policies in the background: now, or when the adjustment in progress has ended.
    pub(crate) fn settle_detached(self: &Arc<Self>, true_costs: &[(Arc<str>, u64)]) {
        lock(&self.deferred)
            .true_costs
            .extend_from_slice(true_costs);
        self.make_deferred();
    }

    fn make_deferred(self: &Arc<Self>) {
        if let Some(turn) = self.try_turn() {
            self.make_deferred_in(Arc::new(turn));
        }
    }

    fn make_deferred_in(self: &Arc<Self>, turn: Arc<Turn>) {
        let refunds = mem::take(&mut lock(&self.deferred).refunds);
        if !refunds.is_empty() {
            self.refund_receipts(&refunds);
        }
        // Charges go next, and settlements follow their results: they could not refund a charge that has no receipt yet.
        let lines = mem::take(&mut lock(&self.deferred).charges);
        if !lines.is_empty() {
            let steps = lines
                .into_iter()
                .filter_map(|line| self.unsettled_step(line));
            return self.send_detached(steps.collect(), UnitsKind::Charged, &turn);
        }
        let true_costs = mem::take(&mut lock(&self.deferred).true_costs);
        let mut corrections = self.corrections(&true_costs);
        loop {
            let steps = self.next_steps(&mut corrections);
            if steps.is_empty() {
                return;
            }
            self.send_detached(steps, UnitsKind::SettledMore, &turn);
        }
    }

    /// The charge of a line's cost, unless the application has settled it.
    fn unsettled_step(&self, line: usize) -> Option<Step> {
        let cost = match self.lines().get(line) {
            Some(own) if !own.is_settled => own.entry.units(),
            _ => return None,
        };
        Some(self.charge_step(line, cost))
    }

    /// Refunds all that is left, in the background: now, or when the adjustment in progress has ended.
    pub(crate) fn refund_all(self: &Arc<Self>) {
        self.refund_lines(|_| true);
    }

    /// Refunds a line as [`refund_all`](Self::refund_all) does all.
    pub(crate) fn refund_line(self: &Arc<Self>, line: usize) {
        self.refund_lines(|index| index == line);
    }

    fn refund_lines(self: &Arc<Self>, is_refunded: impl Fn(usize) -> bool) {
        let mut policies: SmallVec<[Arc<str>; 2]> = SmallVec::new();
        let mut refunds = Vec::new();
        for (index, line) in self.lines().iter_mut().enumerate() {
            if is_refunded(index) {
                line.is_settled = true;
                policies.push(self.name_of(&line.entry));
                refunds.push(index);
            }
        }
        let mut deferred = lock(&self.deferred);
        let costs = &mut deferred.true_costs;
        costs.retain(|(policy, _)| !policies.contains(policy));
        deferred.refunds.append(&mut refunds);
        drop(deferred);
        self.make_deferred();
    }

    fn refund_receipts(&self, refunded: &[usize]) {
        let mut refunds: SmallVec<[Adjustment; 2]> = SmallVec::new();
        let mut lines = self.lines();
        for index in refunded {
            let Some(line) = lines.get_mut(*index) else {
                continue;
            };
            for receipt in line.take_receipts() {
                line.add_returned(&self.set, receipt.remaining);
                let kind = self.kind(&line.entry, UnitsKind::Refunded);
                refunds.push(Adjustment::refund(
                    &line.entry,
                    receipt.remaining,
                    receipt,
                    kind,
                ));
            }
        }
        drop(lines);
        for refund in &refunds {
            refund.refund_detached(&self.set);
        }
    }

    /// Charges lines their costs after the response, except those that are settled, in the background.
    pub(crate) fn charge_after(self: &Arc<Self>, lines: &[usize]) {
        if lines.is_empty() {
            return;
        }
        lock(&self.deferred).charges.extend_from_slice(lines);
        self.make_deferred();
    }

    async fn turn(self: &Arc<Self>) -> Turn {
        // If this future is dropped, the turn that it was granted ends without having begun, and what was deferred is sent.
        let mut turn = Turn {
            lock: None,
            charge: self.clone(),
        };
        turn.lock = Some(self.turn.clone().lock_owned().await);
        turn
    }

    fn try_turn(self: &Arc<Self>) -> Option<Turn> {
        Some(Turn {
            lock: Some(self.turn.clone().try_lock_owned().ok()?),
            charge: self.clone(),
        })
    }

    /// The indices of the lines for which `is_adjusted` is true, of those that the application may adjust.
    fn lines_of(&self, is_adjusted: impl Fn(&Entry) -> bool) -> Vec<usize> {
        let lines = self.lines();
        let lines = lines.iter().enumerate();
        let adjusted =
            lines.filter(|(_, line)| is_adjustable(&line.entry) && is_adjusted(&line.entry));
        adjusted.map(|(index, _)| index).collect()
    }

    fn is_of(&self, entry: &Entry, policy: &str) -> bool {
        entry.name(&self.set) == policy
    }

    fn name_of(&self, entry: &Entry) -> Arc<str> {
        self.set.bound(entry.policy).policy.shared_name()
    }

    fn is_permit(&self, entry: &Entry) -> bool {
        self.set.bound(entry.policy).is_permit()
    }

    /// The kind to report. `None` for permits, of which [`Permits`](super::permits::Permits) report.
    fn kind(&self, entry: &Entry, kind: UnitsKind) -> Option<UnitsKind> {
        (!self.is_permit(entry)).then_some(kind)
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        lock(&self.lines)
    }

    /// Begins a charge of units. They count as charged from now on, also if the result is lost.
    fn charge_step(&self, line: usize, units: Units) -> Step {
        if let Some(line) = self.lines().get_mut(line) {
            line.pending = line.pending.saturating_add(units.get());
            line.is_settled = true;
        }
        Step {
            line,
            kind: StepKind::Charge(units),
        }
    }

    /// Begins a refund of up to `units` of the newest receipt before index `before`, which has them no longer.
    fn refund_step(&self, line: usize, before: usize, units: u64) -> Option<Step> {
        let mut lines = self.lines();
        let receipts = lines.get_mut(line)?.receipts.iter_mut().enumerate();
        let mut older = receipts.take(before);
        let (index, receipt) = older.rfind(|(_, receipt)| receipt.remaining > 0)?;
        let (whole, units) = (*receipt, units.min(receipt.remaining));
        receipt.remaining -= units;
        (units > 0).then_some(Step {
            line,
            kind: StepKind::Refund {
                index,
                receipt: whole,
                units,
            },
        })
    }

    /// The differences between what is charged and each true cost. Marks the lines as settled.
    fn corrections(&self, true_costs: &[(Arc<str>, u64)]) -> Vec<Correction> {
        let mut lines = self.lines();
        let mut corrections = Vec::new();
        for (line, own) in lines.iter_mut().enumerate() {
            // The last cost of a policy counts.
            let mut costs = true_costs.iter().rev();
            let cost = costs.find(|(name, _)| **name == *own.entry.name(&self.set));
            let Some((_, true_cost)) = cost else {
                continue;
            };
            // A permit has an identity in the store, so the number of permits is not corrected.
            if !is_adjustable(&own.entry) || self.is_permit(&own.entry) {
                continue;
            }
            own.is_settled = true;
            let charged = own.net_charged();
            corrections.push(Correction {
                line,
                charge: Units::new(true_cost.saturating_sub(charged)),
                refund: charged.saturating_sub(*true_cost),
                before: usize::MAX,
            });
        }
        corrections
    }

    /// Begins the next adjustments of the corrections: those of one round trip.
    fn next_steps(&self, corrections: &mut [Correction]) -> Vec<Step> {
        let mut steps = Vec::new();
        for correction in corrections {
            let line = correction.line;
            let charge = mem::replace(&mut correction.charge, Units::ZERO);
            if !charge.is_zero() {
                steps.push(self.charge_step(line, charge));
            }
            while correction.refund > 0 && steps.len() < MAX_ADJUSTMENTS {
                match self.refund_step(line, correction.before, correction.refund) {
                    Some(step) => {
                        if let StepKind::Refund { index, units, .. } = step.kind {
                            correction.refund -= units;
                            correction.before = index;
                        }
                        steps.push(step);
                    }
                    // The rest was refunded meanwhile, or has no receipt.
                    None => correction.refund = 0,
                }
            }
        }
        steps
    }

    /// Groups adjustments by the store's shard of their key: those of one shard are one call.
    fn by_call<'a>(&'a self, steps: &'a mut [Step]) -> impl Iterator<Item = &'a [Step]> {
        steps.sort_by_key(|step| self.shard(step));
        steps.chunk_by(|step, next| self.shard(step) == self.shard(next))
    }

    fn shard(&self, step: &Step) -> usize {
        // Cloned, since a store of the application is not called under the lock.
        let entry = self.lines().get(step.line).map(|line| line.entry.clone());
        entry.map_or(0, |entry| entry.store(&self.set).shard(&entry.key))
    }

    /// The call that makes these adjustments. `kind` is reported of charges, and of refunds too unless they settle.
    fn call(&self, steps: &[Step], kind: UnitsKind) -> AdjustCall {
        let lines = self.lines();
        let adjustments = steps.iter().filter_map(|step| {
            let entry = &lines.get(step.line)?.entry;
            Some(match step.kind {
                StepKind::Charge(units) => Adjustment {
                    entry: entry.clone(),
                    units,
                    receipt: None,
                    kind: self.kind(entry, kind),
                },
                StepKind::Refund { receipt, units, .. } => {
                    let kind = match kind {
                        UnitsKind::SettledMore => UnitsKind::SettledLess,
                        kind => kind,
                    };
                    Adjustment::refund(entry, units, receipt, self.kind(entry, kind))
                }
            })
        });
        AdjustCall::new(&self.set, adjustments)
    }

    /// Sends adjustments in the background. The turn ends with the last result.
    fn send_detached(self: &Arc<Self>, mut steps: Vec<Step>, kind: UnitsKind, turn: &Arc<Turn>) {
        for steps in self.by_call(&mut steps) {
            let call = self.call(steps, kind);
            let (charge, turn, steps) = (self.clone(), turn.clone(), steps.to_vec());
            call.send_detached(move |result| {
                // Without a result it counts as made: it may be, or will be.
                if result.is_ok() {
                    charge.apply(&steps, &result);
                }
                drop(turn);
            });
        }
    }

    /// Records what a call did. After an error it counts as made if it may have been.
    fn apply(&self, steps: &[Step], result: &Result<AllAdjusted, StoreError>) {
        let mut lines = self.lines();
        for (index, step) in steps.iter().enumerate() {
            let Some(line) = lines.get_mut(step.line) else {
                continue;
            };
            match result {
                Ok(adjusted) => line.apply(&self.set, &step.kind, &adjusted[index]),
                Err(error) if error.may_have_run() => {}
                Err(_) => line.undo(&step.kind),
            }
        }
    }
}

/// Whether the application may adjust it: a ban counts rejections, and under a shadow that rejects, the work never began.
fn is_adjustable(entry: &Entry) -> bool {
    entry.role != PolicyRole::Ban && !entry.is_shadow_rejection()
}

impl Line {
    /// Units that are charged and not refunded.
    fn net_charged(&self) -> u64 {
        let left = self.receipts.iter().map(|receipt| receipt.remaining);
        left.fold(self.pending, u64::saturating_add)
    }

    /// Takes all units that are left.
    fn take_receipts(&mut self) -> SmallVec<[ChargeReceipt; 2]> {
        let mut taken = self.receipts.clone();
        taken.retain(|receipt| receipt.remaining > 0);
        for receipt in &mut self.receipts {
            receipt.remaining = 0;
        }
        taken
    }

    fn apply(&mut self, set: &PolicySet, step: &StepKind, adjusted: &Adjusted) {
        match step {
            StepKind::Charge(units) => {
                self.pending = self.pending.saturating_sub(units.get());
                self.receipts.push(adjusted.receipt);
            }
            StepKind::Refund { index, units, .. } => {
                self.put_back(*index, units.saturating_sub(adjusted.units));
            }
        }
        let (at, cost) = (adjusted.receipt.charged_at, self.entry.units());
        let status = self.entry.limit(set).status(&adjusted.snapshot, at, cost);
        self.entry.status = LazyStatus::Resolved(status);
        self.is_adjusted = true;
    }

    /// Undoes what was recorded of a step that was not made.
    fn undo(&mut self, step: &StepKind) {
        match step {
            StepKind::Charge(units) => self.pending = self.pending.saturating_sub(units.get()),
            StepKind::Refund { index, units, .. } => self.put_back(*index, *units),
        }
    }

    fn put_back(&mut self, receipt: usize, units: u64) {
        if let Some(receipt) = self.receipts.get_mut(receipt) {
            receipt.remaining = receipt.remaining.saturating_add(units);
        }
    }

    /// Adds units that are on their way back to the status.
    fn add_returned(&mut self, set: &PolicySet, units: u64) {
        let cost = self.entry.units().get();
        self.entry.update_status(set, |status| {
            status.remaining = status.remaining.saturating_add(units);
            if status.remaining >= cost {
                status.retry_after = RetryAfter::Now;
            }
        });
        self.is_adjusted = true;
    }
}

impl Turn {
    fn send(self: &Arc<Self>, steps: Vec<Step>, kind: UnitsKind) -> InFlight {
        let call = self.charge.call(&steps, kind).send();
        InFlight {
            turn: self.clone(),
            steps,
            kind,
            call: Some(call),
        }
    }
}

impl Future for InFlight {
    type Output = Result<AllAdjusted, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = &mut self.call else {
            return Poll::Pending;
        };
        let result = ready!(Pin::new(call).poll(cx));
        self.call = None;
        self.turn.charge.apply(&self.steps, &result);
        Poll::Ready(result)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else {
            return;
        };
        let (turn, steps, kind) = (self.turn.clone(), mem::take(&mut self.steps), self.kind);
        call.detach(move |result| match result {
            // No caller has the error, so it is made in the background.
            Err(error) if !error.may_have_run() => turn.charge.send_detached(steps, kind, &turn),
            result => turn.charge.apply(&steps, &result),
        });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let has_deferred = !lock(&self.charge.deferred).is_empty();
        // Before the callers that wait for their turn: a settlement that follows a dropped meter counts.
        if has_deferred && let Some(guard) = self.lock.take() {
            let next = Turn {
                charge: self.charge.clone(),
                lock: Some(guard),
            };
            return self.charge.make_deferred_in(Arc::new(next));
        }
        self.lock = None;
        if !lock(&self.charge.deferred).is_empty() {
            self.charge.make_deferred();
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").finish_non_exhaustive()
    }
}
