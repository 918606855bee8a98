//! When a policy charges.

use std::{fmt, sync::Arc};

use crate::outcome::Outcome;

/// When a policy charges a request, and when it lets it off.
///
/// | | on arrival | when it is over | concurrent requests |
/// |---|---|---|---|
/// | [`on_arrival`](Charge::on_arrival) (default) | charged | | never exceed the limit |
/// | [`reserve`](Charge::reserve) | charged | given back, if the outcome says so | never exceed the limit |
/// | [`on_response`](Charge::on_response) | checked | charged, if the outcome says so | that are let in together can exceed it: by their number, at most to one more capacity |
///
/// ```
/// use tollgate::{Charge, Policy, Quota, outcome};
///
/// // Five successes a minute, and never more than that under way.
/// let ocr = Policy::new("ocr", Quota::requests(5).per_minute()).charge(Charge::reserve(outcome::success));
/// // Only failures count.
/// let login = Policy::new("login", Quota::requests(20).per_minute()).charge(Charge::on_response(outcome::failure));
/// ```
#[derive(Clone)]
pub struct Charge {
    pub(crate) when: When,
    judge: Option<Judge>,
    dropped: bool,
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
    /// Charges on arrival, whatever becomes of the request.
    pub fn on_arrival() -> Self {
        Self {
            when: When::Arrival,
            judge: None,
            dropped: true,
        }
    }

    /// Checks on arrival that there is room, and charges when the request is over, if `charges` says so of its outcome:
    /// the articles' way. Requests that are under way together may exceed the limit; where that costs money, take
    /// [`reserve`](Charge::reserve).
    ///
    /// A request that is [dropped](crate::outcome::RequestEnd::Dropped) before it has a response is charged, or hanging up would evade a limit
    /// on failures: see [`when_dropped`](Charge::when_dropped).
    pub fn on_response<F>(charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        Self {
            when: When::Response,
            judge: Some(Arc::new(charges)),
            dropped: true,
        }
    }

    /// Charges on arrival, and gives back when the request is over, unless `charges` says of its outcome that it is to be
    /// charged.
    ///
    /// What is given back is only what time has not given back already, and only into the window it was taken from. Under
    /// [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) the time that the request took stays used where others
    /// were charged beside it; for slow work, [`FixedWindow`](crate::FixedWindow) gives back whole. If the process dies
    /// meanwhile the charge stays, no longer than its window.
    pub fn reserve<F>(charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        Self {
            when: When::Reserve,
            judge: Some(Arc::new(charges)),
            dropped: true,
        }
    }

    /// Whether to charge a request that was dropped before it had a response: yes, unless set.
    #[must_use]
    pub fn when_dropped(mut self, charges: bool) -> Self {
        self.dropped = charges;
        self
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
    fn default() -> Self {
        Self::on_arrival()
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("when", &self.when)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

/// Whether a policy's refusals count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denied {
    /// A refused request costs nothing.
    #[default]
    Free,
    /// A refused request is charged by the policies that refuse it, down to a debt of at most one capacity, so that
    /// whoever goes on hammering waits for longer. Strategies that remember each charge
    /// ([`SlidingLog`](crate::SlidingLog), [`ListWindow`](crate::ListWindow), [`Concurrency`](crate::Concurrency)) go into
    /// no debt.
    Counts,
}
