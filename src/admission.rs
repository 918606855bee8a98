//! What a handler holds of its own request's decision, and what a refused caller gets.

use std::{
    error, fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    decision::{Decision, Outcome},
    strategy::Retry,
};

/// A handler's handle to how its request was judged.
///
/// It is in the request's extensions behind a [`RateLimitLayer`](crate::RateLimitLayer), and with feature `axum` it is
/// an extractor. Where layers are stacked, all share one.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use tollgate::Admission;
///
/// async fn handler(admission: Admission) -> String {
///     format!("{:?} left", admission.remaining("burst"))
/// }
/// # let _: axum::routing::MethodRouter = axum::routing::get(handler);
/// # }
/// ```
#[derive(Clone)]
pub struct Admission {
    decisions: Arc<Mutex<Vec<Decision>>>,
}

impl Admission {
    pub(crate) fn of(decision: Decision) -> Self {
        Self {
            decisions: Arc::new(Mutex::new(vec![decision])),
        }
    }

    /// For requests that no layer judged.
    pub(crate) fn unlimited() -> Self {
        Self {
            decisions: Arc::default(),
        }
    }

    /// Every layer's decision on this request, the outermost first.
    pub fn decisions(&self) -> Vec<Decision> {
        self.lock().clone()
    }

    /// Units left under the policy of that name, after this request; `None` if it didn't apply.
    pub fn remaining(&self, policy: &str) -> Option<u64> {
        let decisions = self.lock();
        let mut verdicts = decisions.iter().filter_map(|d| d.verdict(policy));
        verdicts.next().map(|verdict| verdict.remaining())
    }

    /// Joins the decision of a layer further in.
    pub(crate) fn join(&self, decision: Decision) {
        self.lock().push(decision);
    }

    /// A layer further in refused: gives back what the others charged, without waiting for it.
    pub(crate) fn withdraw(&self) {
        for decision in &mut *self.lock() {
            decision.books.give_back(&decision.counted);
            for counted in &mut decision.counted {
                counted.receipt.left = 0;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Decision>> {
        self.decisions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.lock()).finish()
    }
}

/// What a denied caller gets: the error of [`Decision::into_result`].
///
/// With feature `axum` it is a response, the same as the layer's own refusal.
#[derive(Clone, Debug)]
pub struct Refused {
    decision: Box<Decision>,
}

impl Refused {
    pub(crate) fn new(decision: Decision) -> Self {
        Self {
            decision: Box::new(decision),
        }
    }

    /// The decision that refused it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How long to wait; `None` if waiting doesn't help, or it isn't known.
    pub fn retry_after(&self) -> Option<Duration> {
        match (self.decision.outcome(), self.decision.retry()) {
            (Outcome::Exhausted, Retry::After(wait)) => Some(wait),
            _ => None,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision.outcome() {
            Outcome::Admitted => f.write_str("admitted"),
            Outcome::Exhausted => {
                f.write_str("quota exceeded:")?;
                let mut refused = self.decision.verdicts().filter(|v| v.refused());
                refused.try_for_each(|verdict| write!(f, " {}", verdict.policy()))?;
                match self.decision.retry() {
                    Retry::After(wait) => write!(f, "; retry after {wait:?}"),
                    _ => f.write_str("; it costs more than the quota ever allows"),
                }
            }
            Outcome::MissingKey { policy } => {
                write!(f, "the request has no key for policy {policy:?}")
            }
            Outcome::Fault(error) => write!(f, "the store of the rate limits is at fault: {error}"),
        }
    }
}

impl error::Error for Refused {}

impl Decision {
    /// The way on for those who were admitted, and the way out for those who were not.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the request may not pass.
    pub fn into_result(self) -> Result<Admission, Refused> {
        if self.is_admitted() {
            Ok(Admission::of(self))
        } else {
            Err(Refused::new(self))
        }
    }
}
