//! The error of a request that was not admitted.

use std::{error, fmt};

use http::StatusCode;

use super::decision::{Decision, DecisionKind};
use crate::{headers::RateLimitHeaders, rejections::Rejections, strategy::RetryAfter};

/// The error of a request that was not admitted, from [`Limiter::admit`](crate::Limiter::admit) and
/// [`wait`](crate::Limiter::wait).
///
/// With feature `axum` it is a response, equal to the layer's own rejection; with feature `tonic` it converts into a
/// `tonic::Status`. Its text, for logs, names the policies that rejected and the wait.
///
/// ```
/// use http::StatusCode;
/// use tollgate::{Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("mail", Quota::requests(1).per_hour()))
///     .build()?;
/// assert!(limiter.admit("alice").await.is_ok());
/// let rejected = limiter.admit("alice").await.unwrap_err();
/// assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert!(rejected.decision().policy("mail").unwrap().rejected());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rejected {
    decision: Box<Decision>,
    fields: RateLimitHeaders,
    form: Rejections,
}

impl Rejected {
    pub(crate) fn new(decision: Decision) -> Self {
        Self {
            decision: Box::new(decision),
            fields: RateLimitHeaders::default(),
            form: Rejections::Default,
        }
    }

    /// Sets the fields of its response. Default: [`RateLimitHeaders::draft`]. A layer around the handler replaces them by its
    /// own.
    #[must_use]
    pub fn headers(mut self, headers: RateLimitHeaders) -> Self {
        self.fields = headers;
        self
    }

    /// Sets the form of its response: problem details, or the error of a provider. Default: [`Rejections::Default`]. A layer
    /// around the handler replaces it by its own.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::response::IntoResponse;
    /// use tollgate::{Limiter, Policy, Quota, layer::Rejections};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("tpm", Quota::units(1_500).per_day()))
    ///     .build()?;
    /// drop(limiter.admit("alice").cost(1_500).await?);
    /// let rejected = limiter.admit("alice").cost(500).await.unwrap_err();
    /// let response = rejected.rejections(Rejections::OpenAi).into_response();
    /// // 500 units of 1,500 a day are back in eight hours.
    /// assert_eq!(response.headers()["x-should-retry"], "false");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rejections(mut self, form: Rejections) -> Self {
        self.form = form;
        self
    }

    pub(crate) fn fields(&self) -> &RateLimitHeaders {
        &self.fields
    }

    pub(crate) fn form(&self) -> Rejections {
        self.form
    }

    /// The decision on the request.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The status of its response: 429 for a quota or a [ban](crate::Ban), 403 for a deny list, 400 for a missing key, 503 if
    /// the store failed or the call is invalid.
    pub fn status(&self) -> StatusCode {
        status_of(self.decision.kind())
    }

    /// The wait until the same request would be admitted: see [`Decision::retry_after`].
    pub fn retry_after(&self) -> RetryAfter {
        self.decision.retry_after()
    }
}

/// The status of the response to a rejected request.
pub(crate) fn status_of(kind: &DecisionKind) -> StatusCode {
    match kind {
        DecisionKind::Rejected | DecisionKind::Admitted => StatusCode::TOO_MANY_REQUESTS,
        DecisionKind::MissingKey { .. } => StatusCode::BAD_REQUEST,
        DecisionKind::DenyListed => StatusCode::FORBIDDEN,
        DecisionKind::StoreFailed(_) | DecisionKind::Invalid(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision.kind() {
            DecisionKind::Admitted => f.write_str("admitted"),
            DecisionKind::Rejected => {
                f.write_str("quota exceeded: ")?;
                let rejecting = self.decision.one_per_policy().filter(|p| p.rejected());
                for (index, policy) in rejecting.enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{:?}", policy.policy())?;
                }
                match self.retry_after() {
                    RetryAfter::In(wait) => write!(f, "; retry after {wait:?}"),
                    RetryAfter::Never => {
                        f.write_str("; the request costs more than the quota ever allows")
                    }
                    RetryAfter::Now | RetryAfter::Unknown => Ok(()),
                }
            }
            DecisionKind::MissingKey { policy, missing } => {
                write!(
                    f,
                    "the request has no key for policy {policy:?}: it lacks {missing}"
                )
            }
            DecisionKind::DenyListed => f.write_str("the request is on a deny list"),
            DecisionKind::StoreFailed(error) => {
                write!(f, "rate limit store failed: {error}")
            }
            DecisionKind::Invalid(error) => error.fmt(f),
        }
    }
}

impl error::Error for Rejected {}
