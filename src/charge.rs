//! When a policy charges.

use std::{fmt, sync::Arc};

use crate::outcome::Outcome;

/// When a policy charges, and what it charges for.
#[derive(Clone)]
pub(crate) struct Charge {
    pub(crate) when: When,
    /// Whether a rejected request is charged too.
    pub(crate) rejected: bool,
    judge: Option<Judge>,
    /// Whether a request is charged that was dropped before it had a response.
    pub(crate) dropped: bool,
}

/// Says of an outcome whether it is charged.
type Judge = Arc<dyn Fn(&Outcome<'_>) -> bool + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Arrival,
    Response,
    Reserve,
}

impl Charge {
    /// Charges at that time what `judge` says.
    pub(crate) fn set(
        &mut self,
        when: When,
        judge: impl Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    ) {
        self.when = when;
        self.judge = Some(Arc::new(judge));
    }

    /// Whether a request that ended so is to be charged.
    pub(crate) fn charges(&self, outcome: &Outcome<'_>) -> bool {
        match &self.judge {
            Some(_) if outcome.is_unknown() => self.dropped,
            Some(judge) => judge(outcome),
            None => true,
        }
    }
}

impl Default for Charge {
    /// On arrival, whatever the outcome.
    fn default() -> Self {
        Self {
            when: When::Arrival,
            rejected: false,
            judge: None,
            dropped: true,
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("when", &self.when)
            .field("rejected", &self.rejected)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}
