//! The state of an admission: the decisions on one request, and its permits.

use std::{
    mem,
    sync::{Arc, Weak},
};

use crate::decision::{Decision, LimiterBackend, PermitHandle};

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
    /// The outermost layer's decision, or that of a call by hand.
    first: Option<Decision>,
    rare: Option<Box<RareState>>,
}

/// State that most requests don't have.
#[derive(Default)]
struct RareState {
    /// The decisions of layers further in.
    inner: Vec<Decision>,
    /// The permits that the layers hold.
    layer_permits: Vec<Weak<dyn PermitHandle>>,
    /// The permit of a call by hand.
    own_permit: Option<Arc<dyn PermitHandle>>,
    settle_lock: Option<Arc<SettleLock>>,
}

/// What a layer has to know of a decision that it has added to an admission.
#[derive(Default)]
pub(crate) struct AddedDecision {
    /// The decision's index in the admission.
    pub(crate) index: usize,
    /// Its permit, which the layer holds.
    pub(crate) permit: Option<Arc<dyn PermitHandle>>,
    /// Whether a charge depends on the request's outcome.
    pub(crate) depends_on_outcome: bool,
}

impl AdmissionState {
    /// Moves the first decision here.
    pub(super) fn add_first(&mut self, decision: &mut Option<Decision>) -> AddedDecision {
        mem::swap(&mut self.first, decision);
        self.hand_over(0)
    }

    /// Adds a decision.
    pub(super) fn add(&mut self, decision: Decision) -> AddedDecision {
        if self.first.is_none() {
            return self.add_first(&mut Some(decision));
        }
        let inner = &mut self.rare().inner;
        inner.push(decision);
        let index = inner.len();
        self.hand_over(index)
    }

    /// Hands the permit of the decision of this index over to its layer.
    #[inline]
    fn hand_over(&mut self, index: usize) -> AddedDecision {
        let Some(decision) = self.get(index) else {
            return AddedDecision::default();
        };
        let added = AddedDecision {
            index,
            depends_on_outcome: decision.depends_on_outcome(),
            permit: decision.permit.take(),
        };
        if let Some(permit) = &added.permit {
            self.rare().layer_permits.push(Arc::downgrade(permit));
        }
        added
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
        let outer = self.first.as_ref().and_then(of);
        outer.or_else(|| self.rare.as_ref()?.inner.iter().find_map(of))
    }

    fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    pub(super) fn decisions(&mut self) -> impl Iterator<Item = &mut Decision> {
        let inner = self.rare.iter_mut().flat_map(|rare| &mut rare.inner);
        self.first.iter_mut().chain(inner)
    }

    /// The decision with this index: 0 is the outermost layer's.
    #[inline]
    pub(super) fn get(&mut self, index: usize) -> Option<&mut Decision> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rare.as_mut()?.inner.get_mut(index),
        }
    }

    /// Holds the permit of a call by hand.
    pub(super) fn hold(&mut self, permit: Option<Arc<dyn PermitHandle>>) {
        if permit.is_some() {
            self.rare().own_permit = permit;
        }
    }

    /// The permits that are still held.
    pub(super) fn permits(&self) -> Vec<Arc<dyn PermitHandle>> {
        let permits = self.rare.iter().flat_map(|rare| &rare.layer_permits);
        permits.filter_map(Weak::upgrade).collect()
    }

    pub(super) fn settle_lock(&mut self) -> Arc<SettleLock> {
        self.rare().settle_lock.get_or_insert_default().clone()
    }
}
