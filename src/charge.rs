//! When a policy charges a request, and by which outcomes.

use std::{fmt, sync::Arc};

use crate::outcome::Outcome;

/// When a policy charges a request, and by which outcomes.
#[derive(Clone)]
pub(crate) struct ChargeMode {
    pub(crate) when: ChargeTime,
    /// Whether rejected requests are charged too.
    pub(crate) rejected: bool,
    /// `None` to charge every outcome.
    should_charge: Option<OutcomeFn>,
    /// Whether requests that were dropped before they had a response are charged.
    pub(crate) dropped: bool,
}

/// Whether an outcome is charged.
type OutcomeFn = Arc<dyn Fn(&Outcome<'_>) -> bool + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeTime {
    Arrival,
    /// After the response; a request is only checked on arrival.
    Response,
    /// On arrival, with a refund after the response if its outcome is not charged.
    Reserve,
}

impl ChargeMode {
    /// Charges at `when` the outcomes for which `should_charge` returns true.
    pub(crate) fn set(
        &mut self,
        when: ChargeTime,
        should_charge: impl Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    ) {
        self.when = when;
        self.should_charge = Some(Arc::new(should_charge));
    }

    /// Whether a request with this outcome is charged.
    pub(crate) fn charges(&self, outcome: &Outcome<'_>) -> bool {
        match &self.should_charge {
            Some(_) if outcome.is_unknown() => self.dropped,
            Some(should_charge) => should_charge(outcome),
            None => true,
        }
    }
}

impl Default for ChargeMode {
    /// Charges admitted requests on arrival, whatever their outcome.
    fn default() -> Self {
        Self {
            when: ChargeTime::Arrival,
            rejected: false,
            should_charge: None,
            dropped: true,
        }
    }
}

impl fmt::Debug for ChargeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeMode")
            .field("when", &self.when)
            .field("rejected", &self.rejected)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}
