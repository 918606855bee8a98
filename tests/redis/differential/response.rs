//! A store's result, in a form in which results compare.

use std::collections::BTreeMap;

use tollgate::{
    explain::Explanation,
    limiter::{LimitStatus, PolicyDecision},
};
use tollgate_tests::prelude::*;

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpResult {
    /// How many were admitted; of a check alone, under at least one policy.
    pub(crate) admitted: Option<u64>,
    /// By policy.
    pub(crate) under: BTreeMap<String, Under>,
}

/// The state of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Under {
    pub(crate) limit: u64,
    pub(crate) cost: u64,
    pub(crate) remaining: u64,
    /// `None` if the request will never be admitted.
    pub(crate) wait: Option<Duration>,
    pub(crate) reset: Duration,
    /// Whether it rejects, or would; `None` if that is not reported.
    pub(crate) rejects: Option<bool>,
}

impl Under {
    fn of(policy: &PolicyDecision<'_>, decided: bool) -> Self {
        Self {
            limit: policy.limit(),
            cost: policy.cost(),
            remaining: policy.remaining(),
            wait: policy.retry_after().duration(),
            reset: policy.reset_after(),
            rejects: decided.then(|| policy.would_reject()),
        }
    }
}

impl OpResult {
    pub(crate) fn new(admitted: Option<u64>, under: Vec<Option<Under>>) -> Self {
        let under = under.into_iter().enumerate();
        let under = under.filter_map(|(place, under)| {
            Some((crate::differential::history::policy_name(place), under?))
        });
        Self {
            admitted,
            under: under.collect(),
        }
    }

    /// The result of a status.
    pub(crate) fn of_status(status: &Result<LimitStatus, CallError>) -> Result<Self, String> {
        let status = status.as_ref().map_err(ToString::to_string)?;
        let policies = status.policies().chain(status.shadows());
        let under = policies.map(|policy| (policy.policy().to_owned(), Under::of(&policy, false)));
        Ok(Self {
            admitted: None,
            under: under.collect(),
        })
    }

    /// What an explanation says of a status, which it must be.
    pub(crate) fn check_explanation(
        explanation: &Explanation,
        status: &LimitStatus,
    ) -> Result<(), String> {
        let explained = explanation.policies().filter(|policy| !policy.is_ban());
        let explained = explained.filter_map(|policy| {
            let name = policy.name().to_owned();
            Some((name, Under::of(&policy.status()?, false)))
        });
        let explained: BTreeMap<_, _> = explained.collect();
        let mut peeked = Self::of_status(&Ok(status.clone()))?.under;
        for ban in explanation.policies().filter(|policy| policy.is_ban()) {
            peeked.remove(ban.name());
        }
        let is_same = explained == peeked
            && explanation.would_admit() == status.would_admit()
            && explanation.retry_after() == status.retry_after();
        if is_same {
            Ok(())
        } else {
            Err(format!("explained {explanation:?}\npeeked {status:?}"))
        }
    }

    /// The result of a decision, of a check or not.
    pub(crate) fn of(decision: &Decision, check: bool) -> Result<Self, String> {
        if let DecisionKind::StoreFailed(error) = decision.kind() {
            return Err(format!("{error}"));
        }
        let policies = decision.policies().chain(decision.shadows());
        let under = policies.map(|policy| (policy.policy().to_owned(), Under::of(&policy, check)));
        let by_policies = check && decision.source() != DecisionSource::NotChecked;
        Ok(Self {
            admitted: by_policies.then_some(decision.admitted()),
            under: under.collect(),
        })
    }

    /// Without what a model doesn't know.
    pub(crate) fn bare(&self) -> Self {
        let mut bare = self.clone();
        for under in bare.under.values_mut() {
            under.rejects = None;
        }
        bare
    }
}

/// Whether a decision came from the rejection cache, which has the state of some policies only.
pub(crate) fn is_cached(decision: &Decision) -> bool {
    decision.source() == DecisionSource::RejectionCache
}
