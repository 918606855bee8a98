//! What a store answers, in a form in which answers compare.

use std::{collections::BTreeMap, time::Duration};

use tollgate::{CallError, Decision, DecisionKind, DecisionSource, LimitStatus, PolicyDecision};

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpResult {
    /// How many were admitted; of a check alone.
    pub(crate) admitted: Option<u64>,
    /// StrategyKind policy.
    pub(crate) under: BTreeMap<String, Under>,
}

/// What is said of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Under {
    pub(crate) limit: u64,
    pub(crate) cost: u64,
    pub(crate) remaining: u64,
    /// `None` if the request will never be admitted.
    pub(crate) wait: Option<Duration>,
    pub(crate) reset: Duration,
    /// Whether it rejects, or would; `None` if that isn't known.
    pub(crate) rejects: Option<bool>,
}

impl Under {
    fn of(verdict: &PolicyDecision<'_>, decided: bool) -> Self {
        Self {
            limit: verdict.limit(),
            cost: verdict.cost(),
            remaining: verdict.remaining(),
            wait: verdict.retry_after().duration(),
            reset: verdict.reset_after(),
            rejects: decided.then(|| verdict.would_reject()),
        }
    }
}

impl OpResult {
    pub(crate) fn new(admitted: Option<u64>, under: Vec<Option<Under>>) -> Self {
        let under = under.into_iter().enumerate();
        let under =
            under.filter_map(|(place, under)| Some((crate::history::policy_name(place), under?)));
        Self {
            admitted,
            under: under.collect(),
        }
    }

    /// What is said of how keys stand.
    pub(crate) fn of_status(status: &Result<LimitStatus, CallError>) -> Result<Self, String> {
        let status = status.as_ref().map_err(ToString::to_string)?;
        let verdicts = status.policies().chain(status.shadows());
        let under =
            verdicts.map(|verdict| (verdict.policy().to_owned(), Under::of(&verdict, false)));
        Ok(Self {
            admitted: None,
            under: under.collect(),
        })
    }

    /// What a decision says, of a check or not.
    pub(crate) fn of(decision: &Decision, check: bool) -> Result<Self, String> {
        if let DecisionKind::StoreFailed(error) = decision.kind() {
            return Err(format!("{error}"));
        }
        let verdicts = decision.policies().chain(decision.shadows());
        let under =
            verdicts.map(|verdict| (verdict.policy().to_owned(), Under::of(&verdict, check)));
        Ok(Self {
            admitted: check.then_some(decision.admitted()),
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

/// Whether an answer came from the cache of rejections, which knows of some policies only.
pub(crate) fn is_cached(decision: &Decision) -> bool {
    decision.source() == DecisionSource::RejectionCache
}
