//! When a policy charges a request, and by which outcomes.

use std::fmt;

use crate::{outcome::Outcome, setting::Code};

/// When a policy charges a request, and by which outcomes.
#[derive(Clone)]
pub(crate) struct ChargeMode {
    pub(crate) when: ChargeTime,
    /// Whether rejected requests are charged too.
    pub(crate) rejected: bool,
    /// `None` to charge every outcome.
    should_charge: Option<Code<OutcomeFn>>,
    /// Whether requests that were dropped before they had a response are charged.
    pub(crate) dropped: bool,
}

/// Whether an outcome is charged.
pub(crate) type OutcomeFn = dyn Fn(&Outcome<'_>) -> bool + Send + Sync;

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
    pub(crate) fn set(&mut self, when: ChargeTime, should_charge: Code<OutcomeFn>) {
        self.when = when;
        self.should_charge = Some(should_charge);
    }

    /// The outcomes that are charged, unless all are.
    pub(crate) fn outcomes(&self) -> Option<&Code<OutcomeFn>> {
        self.should_charge.as_ref()
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
