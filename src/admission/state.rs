//! The state of an admission: the decisions on one request, and its permits.

use std::{
    mem,
    sync::{Arc, Weak},
};

use crate::decision::{CompactDecision, Decision, LimiterBackend, PermitHandle};

/// Held while charges are settled, so that settlements of a request do not overlap.
pub(super) type SettleLock = tokio::sync::Mutex<()>;

/// Where a charge is: the index of its decision in the request's admission, and of its entry in the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryPosition {
    pub(super) decision: usize,
    pub(super) entry: usize,
}

/// The decisions on one request, and the permits that it holds.
#[derive(Default)]
pub(super) struct AdmissionState {
    outer: OuterDecision,
    rare: Option<Box<RareState>>,
}

/// The decision of the outermost layer.
#[derive(Default)]
enum OuterDecision {
    #[default]
    None,
    /// In compact form, until it is read.
    Compact(CompactDecision),
    Made(Box<Decision>),
}

/// State that most requests don't have.
#[derive(Default)]
struct RareState {
    /// The decisions of layers further in.
    inner: Vec<Decision>,
    /// The permits of all decisions, which the layers hold.
    permits: Vec<Weak<dyn PermitHandle>>,
    /// The permit of a decision without a layer.
    permit: Option<Arc<dyn PermitHandle>>,
    settle_lock: Option<Arc<SettleLock>>,
}

impl AdmissionState {
    /// The state after one decision, in compact form.
    pub(super) fn compact(decision: CompactDecision) -> Self {
        Self {
            outer: OuterDecision::Compact(decision),
            rare: None,
        }
    }

    /// Adds a decision; returns its index, and its permit.
    pub(super) fn add(&mut self, mut decision: Decision) -> (usize, Option<Arc<dyn PermitHandle>>) {
        let permit = decision.permit.take();
        if let Some(permit) = &permit {
            self.rare().permits.push(Arc::downgrade(permit));
        }
        if let OuterDecision::None = self.outer {
            self.outer = OuterDecision::Made(Box::new(decision));
            return (0, permit);
        }
        let inner = &mut self.rare().inner;
        inner.push(decision);
        (inner.len(), permit)
    }

    /// The name of a policy of `decision` that has charged the request to the same counter before.
    pub(super) fn double_counted_policy(&self, decision: &Decision) -> Option<String> {
        let again = |backend: &dyn LimiterBackend, policy: u32| {
            let location = backend.counter_location(policy)?;
            let mut locations = decision
                .entries
                .iter()
                .map(|entry| decision.backend.counter_location(entry.policy));
            let twice = locations.any(|other| other == Some(location));
            twice.then(|| location.1.to_owned())
        };
        let of = |outer: &Decision| {
            let mut entries = outer.entries.iter();
            entries.find_map(|entry| again(&*outer.backend, entry.policy))
        };
        let outer = match &self.outer {
            OuterDecision::None => None,
            OuterDecision::Compact(compact) => again(&*compact.backend, 0),
            OuterDecision::Made(outer) => of(outer),
        };
        outer.or_else(|| self.rare.as_ref()?.inner.iter().find_map(of))
    }

    fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    fn outer(&mut self) -> Option<&mut Decision> {
        if let OuterDecision::Compact(_) = self.outer
            && let OuterDecision::Compact(compact) = mem::take(&mut self.outer)
        {
            self.outer = OuterDecision::Made(Box::new(compact.decision()));
        }
        match &mut self.outer {
            OuterDecision::Made(decision) => Some(decision),
            _ => None,
        }
    }

    pub(super) fn decisions(&mut self) -> impl Iterator<Item = &mut Decision> {
        self.outer();
        let outer = match &mut self.outer {
            OuterDecision::Made(decision) => Some(&mut **decision),
            _ => None,
        };
        let inner = self.rare.iter_mut().flat_map(|rare| &mut rare.inner);
        outer.into_iter().chain(inner)
    }

    /// The decision with this index: 0 is the outermost layer's.
    pub(super) fn get(&mut self, index: usize) -> Option<&mut Decision> {
        match index.checked_sub(1) {
            None => self.outer(),
            Some(index) => self.rare.as_mut()?.inner.get_mut(index),
        }
    }

    /// Calls `read` with the decision of this index.
    pub(super) fn into_decision(mut self, index: usize, read: impl FnOnce(&Decision)) {
        match self.outer {
            OuterDecision::Compact(compact) if index == 0 => read(&compact.decision()),
            _ => {
                if let Some(decision) = self.get(index) {
                    read(decision);
                }
            }
        }
    }

    /// Holds the permit of a decision without a layer.
    pub(super) fn hold(&mut self, permit: Option<Arc<dyn PermitHandle>>) {
        if permit.is_some() {
            self.rare().permit = permit;
        }
    }

    /// The permits that are still held.
    pub(super) fn permits(&self) -> Vec<Arc<dyn PermitHandle>> {
        let permits = self.rare.iter().flat_map(|rare| &rare.permits);
        permits.filter_map(Weak::upgrade).collect()
    }

    pub(super) fn settle_lock(&mut self) -> Arc<SettleLock> {
        self.rare().settle_lock.get_or_insert_default().clone()
    }
}
