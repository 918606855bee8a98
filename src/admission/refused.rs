//! What a refused caller gets.

use std::{error, fmt, time::Duration};

use crate::{
    decision::{Decision, Ruling},
    error::StoreError,
    respond::Headers,
    strategy::Retry,
};

/// What a denied caller gets: the error of [`Decision::into_result`].
///
/// With feature `axum` it is a response, the same as the layer's own refusal; with feature `tonic` it converts into a
/// `tonic::Status`.
#[derive(Clone, Debug)]
pub struct Refused {
    decision: Box<Decision>,
    fields: Headers,
}

impl Refused {
    pub(crate) fn new(decision: Decision) -> Self {
        Self {
            decision: Box::new(decision),
            fields: Headers::default(),
        }
    }

    /// Which fields it has as a response: those of [`Headers::draft`], unless set. A layer that was told to use others
    /// does so for its own refusals.
    #[must_use]
    pub fn headers(mut self, headers: Headers) -> Self {
        self.fields = headers;
        self
    }

    pub(crate) fn fields(&self) -> Headers {
        self.fields
    }

    /// The decision that refused it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How long to wait; `None` if waiting doesn't help, or it isn't known.
    pub fn retry_after(&self) -> Option<Duration> {
        match (self.decision.ruling(), self.decision.retry()) {
            (Ruling::Exhausted, Retry::After(wait)) => Some(wait),
            (Ruling::Fault(StoreError::Open { retry_after }), _) => Some(*retry_after),
            _ => None,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision.ruling() {
            Ruling::Admitted => f.write_str("admitted"),
            Ruling::Exhausted => {
                f.write_str("quota exceeded:")?;
                let mut refused = self.decision.verdicts().filter(|v| v.refused());
                refused.try_for_each(|verdict| write!(f, " {}", verdict.policy()))?;
                match self.decision.retry() {
                    Retry::After(wait) => write!(f, "; retry after {wait:?}"),
                    _ => f.write_str("; it costs more than the quota ever allows"),
                }
            }
            Ruling::MissingKey { policy } => {
                write!(f, "the request has no key for policy {policy:?}")
            }
            Ruling::Denied => f.write_str("the request is on a deny list"),
            Ruling::Fault(error) => write!(f, "the store of the rate limits is at fault: {error}"),
        }
    }
}

impl error::Error for Refused {}
