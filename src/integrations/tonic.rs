//! What tonic needs to know of [`Rejected`].

use std::sync::Arc;

use ::tonic::{Code, Status, metadata::MetadataMap};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use crate::{
    admission::Rejected,
    error::{CallError, StoreError, UnknownPolicy},
    respond::{Delay, Problem, Unavailable, grpc::PUSHBACK},
};

/// The same as the layer's own rejection: `RESOURCE_EXHAUSTED` with `google.rpc.RetryInfo`, `google.rpc.QuotaFailure` and
/// `grpc-retry-pushback-ms`; `UNAVAILABLE` if the store failed, `INVALID_ARGUMENT` if there is no key,
/// `PERMISSION_DENIED` if a list denies it. It is the status's source.
///
/// ```
/// use tollgate::Limiter;
/// use tonic::{Request, Response, Status};
///
/// async fn say_hello(limiter: &Limiter, request: Request<String>) -> Result<Response<String>, Status> {
///     let _admission = limiter.admit(request.get_ref()).await?;
///     Ok(Response::new("hello".to_owned()))
/// }
/// ```
impl From<Rejected> for Status {
    fn from(refused: Rejected) -> Self {
        let decision = refused.decision();
        let delay = Delay::of(decision, refused.fields());
        let mut status = status(&Problem::of(decision), delay);
        status.set_source(Arc::new(refused));
        status
    }
}

/// The status of a refusal.
pub(crate) fn status(problem: &Problem<'_>, delay: Delay) -> Status {
    let mut details = ErrorDetails::new();
    if let Some(wait) = delay.wait() {
        details.set_retry_info(Some(wait));
    }
    let violated: Vec<_> = problem
        .violated()
        .map(|verdict| QuotaViolation {
            quota_id: verdict.policy().to_owned(),
            quota_value: i64::try_from(verdict.quota().amount()).unwrap_or(i64::MAX),
            ..QuotaViolation::new(
                verdict.policy(),
                format!("quota exceeded: {}", verdict.quota()),
            )
        })
        .collect();
    if !violated.is_empty() {
        details.set_quota_failure(violated);
    }
    let mut metadata = MetadataMap::new();
    if let Some(ms) = delay.pushback_ms() {
        metadata.insert(PUSHBACK, ms.into());
    }
    let message = problem.sentence(delay);
    Status::with_error_details_and_metadata(
        Code::from_i32(problem.code),
        message,
        details,
        metadata,
    )
}

/// `UNAVAILABLE`, with `google.rpc.RetryInfo` if the store failed. A mistake of the application, such as an unknown policy, is
/// logged as an error every 10 s at most. The error is the status's source.
impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let mut details = ErrorDetails::new();
        if let Some(wait) = Unavailable::of(&error).retry_after {
            details.set_retry_info(Some(wait));
        }
        let mut status =
            Status::with_error_details(Code::Unavailable, Unavailable::sentence(), details);
        status.set_source(Arc::new(error));
        status
    }
}

/// As of [`CallError::Store`].
impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        CallError::from(error).into()
    }
}

/// As of [`CallError::UnknownPolicy`].
impl From<UnknownPolicy> for Status {
    fn from(error: UnknownPolicy) -> Self {
        CallError::from(error).into()
    }
}
