//! Conversions of [`Rejected`] and of errors to a tonic `Status`.

use std::sync::Arc;

use ::tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Unavailable;
use crate::{
    error::{CallError, StoreError, UnknownPolicy},
    limiter::Rejected,
    respond::{Problem, RetryDelay, grpc},
};

/// The status of a layer's own rejection: `RESOURCE_EXHAUSTED` with `google.rpc.RetryInfo`, `google.rpc.QuotaFailure` and
/// `grpc-retry-pushback-ms`; `UNAVAILABLE` if the store failed, `INVALID_ARGUMENT` for a missing key, `PERMISSION_DENIED` for a
/// deny list. The `Rejected` is the status's `source()`.
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
    fn from(rejected: Rejected) -> Self {
        let decision = rejected.decision();
        let delay = RetryDelay::of(decision, rejected.fields());
        let mut status = grpc::status(&Problem::of(decision), delay);
        status.set_source(Arc::new(rejected));
        status
    }
}

/// The status `UNAVAILABLE`, with `google.rpc.RetryInfo` if the store failed. A mistake in the application, such as an unknown
/// policy, is logged as an error at most every 10 s. The error is the status's `source()`.
impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let mut details = ErrorDetails::new();
        if let Some(wait) = Unavailable::of(&error).retry_after {
            details.set_retry_info(Some(wait));
        }
        let mut status =
            Status::with_error_details(Code::Unavailable, Unavailable::message(), details);
        status.set_source(Arc::new(error));
        status
    }
}

/// The status of [`CallError::Store`].
impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        CallError::from(error).into()
    }
}

/// The status of [`CallError::UnknownPolicy`].
impl From<UnknownPolicy> for Status {
    fn from(error: UnknownPolicy) -> Self {
        CallError::from(error).into()
    }
}
