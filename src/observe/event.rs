//! Everything that observers see beside decisions.

use std::time::Duration;

use super::stats::{BreakerState, LimiterStats, StatsHandle};
use crate::{error::StoreError, key::Key};

/// Units were charged, refunded or settled under a policy after a request's decision, or by hand.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UnitsEvent<'a> {
    /// How often the limiter had been [reconfigured](crate::Limiter::reconfigure) before. `index` is an index into the policies of
    /// this generation.
    pub generation: u64,
    /// The policy's index among the [policies](crate::Limiter::policies) of that generation.
    pub index: usize,
    /// The policy's name.
    pub policy: &'a str,
    /// The key under which they are counted; of a secret, its hash.
    pub key: &'a Key,
    /// What was done.
    pub kind: UnitsKind,
    /// The number of units.
    pub units: u64,
    /// Whether the store has confirmed it. If not, the result was not awaited or is unknown, and the units are those that were asked
    /// for: a refund may give back fewer.
    pub confirmed: bool,
}

/// What was done with units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum UnitsKind {
    /// Charged after the decision, by a handler or by the request's outcome, or [by hand](crate::Limiter::charge).
    Charged,
    /// Given back to a request, by a handler or by the request's outcome, or since it was dropped.
    Refunded,
    /// Charged, since the true cost of a request was higher.
    SettledMore,
    /// Given back, since the true cost of a request was lower.
    SettledLess,
    /// [Added by hand](crate::limiter::PolicyHandle::credit).
    Credited,
}

/// One round trip to a server of the store, or an attempt to connect to it that failed. Probes of a failed server and health
/// checks are not reported. A call that is sent several times is reported each time, all but the last as
/// [repeated](StoreCallResult::Repeated).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreCallEvent<'a> {
    /// The server's address, as it is configured or was discovered, without credentials.
    pub node: &'a str,
    /// The time from sending to the response, or until the call was given up: by the timeout, or by the end of its connection.
    pub elapsed: Duration,
    /// The number of checks in the call, one of [several requests](crate::limiter::Check::times) counting once; 0 for a call
    /// that only charges by hand, refunds, settles or renews.
    pub requests: usize,
    /// The number of operations on counters; those of equal requests are one.
    pub counter_ops: usize,
    /// How the call ended.
    pub result: StoreCallResult<'a>,
}

/// How a [round trip](StoreCallEvent) ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StoreCallResult<'a> {
    /// All of its operations were executed.
    Ok,
    /// The server executed nothing, and the call is sent again: for this reply, such as `NOSCRIPT` of a server that was restarted,
    /// or a redirect of a cluster. No request fails by it.
    Repeated(&'a StoreError),
    /// Operations failed with this error: all of the call, or those for single keys.
    Failed(&'a StoreError),
}

/// The state of a limiter or of its store has changed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// These policies are in force from now on: the limiter was built, or reconfigured. Decisions under the policies before may
    /// still be reported. Reported within [`reconfigure`](crate::Limiter::reconfigure), which the observer must not call.
    #[non_exhaustive]
    PoliciesInForce {
        /// The state of the limiter, with its policies.
        stats: &'a LimiterStats,
        /// Reads the state of the limiter later.
        handle: &'a StatsHandle,
    },
    /// The circuit breaker of a server of the store has another state.
    #[non_exhaustive]
    BreakerChanged {
        /// The server, as in [`StoreCallEvent::node`].
        node: &'a str,
        /// Its state from now on.
        state: BreakerState,
    },
    /// A [ban](crate::Ban) has begun: by rejections, or [by hand](crate::Limiter::block).
    #[non_exhaustive]
    BanBegan {
        /// The ban's name.
        policy: &'a str,
        /// The key that is banned.
        key: &'a Key,
        /// How long the ban lasts.
        lasts: Duration,
        /// Whether it was begun by hand.
        by_hand: bool,
    },
    /// A request has got permits of an in-flight limit.
    #[non_exhaustive]
    PermitsHeld {
        /// The policy's name.
        policy: &'a str,
        /// The key under which they are counted.
        key: &'a Key,
        /// The number of permits.
        permits: u64,
    },
    /// A request has released its permits of an in-flight limit.
    #[non_exhaustive]
    PermitsReleased {
        /// The policy's name.
        policy: &'a str,
        /// The key under which they are counted.
        key: &'a Key,
        /// The number of permits.
        permits: u64,
    },
    /// The store has dropped refunds, charges or settlements without a waiter: see
    /// [`HealthReport::dropped_refunds`](crate::store::HealthReport::dropped_refunds).
    #[non_exhaustive]
    RefundsDropped {
        /// Their number.
        refunds: u64,
    },
    /// A watched configuration file was loaded, or could not be.
    #[non_exhaustive]
    ConfigLoaded {
        /// Whether the configuration is in force now. If not, the last one stays; that is reported once for each content of
        /// the file.
        applied: bool,
        /// The hash of the document, if it is in force.
        hash: Option<&'a str>,
    },
}

impl<'a> StoreCallEvent<'a> {
    /// A round trip, for a [`Store`](crate::store::Store) of your own.
    pub fn new(node: &'a str, elapsed: Duration) -> Self {
        Self {
            node,
            elapsed,
            requests: 0,
            counter_ops: 0,
            result: StoreCallResult::Ok,
        }
    }

    /// This event with the numbers of requests and of operations on counters.
    #[must_use]
    pub fn with_ops(mut self, requests: usize, counter_ops: usize) -> Self {
        (self.requests, self.counter_ops) = (requests, counter_ops);
        self
    }

    /// This event of a call that failed.
    #[must_use]
    pub fn with_error(mut self, error: &'a StoreError) -> Self {
        self.result = StoreCallResult::Failed(error);
        self
    }

    /// This event of a call that is sent again for this reply.
    #[must_use]
    pub fn repeated(mut self, reply: &'a StoreError) -> Self {
        self.result = StoreCallResult::Repeated(reply);
        self
    }
}

impl<'a> StoreCallResult<'a> {
    /// Its name in metrics: `ok`, `repeated` or `error`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Repeated(_) => "repeated",
            Self::Failed(_) => "error",
        }
    }

    /// The error of a call that failed.
    pub const fn error(self) -> Option<&'a StoreError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Ok | Self::Repeated(_) => None,
        }
    }
}

impl UnitsKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Charged,
        Self::Refunded,
        Self::SettledMore,
        Self::SettledLess,
        Self::Credited,
    ];

    /// Its name in metrics: `charged`, `refunded`, `settled_more`, `settled_less` or `credited`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Refunded => "refunded",
            Self::SettledMore => "settled_more",
            Self::SettledLess => "settled_less",
            Self::Credited => "credited",
        }
    }
}
