//! The outcomes of admitted requests, for policies that [charge](crate::Policy::charge_after) by them.

use std::fmt;

use http::{HeaderMap, StatusCode, response::Parts};

/// The outcome of an admitted request: its response, if there was one, and how it ended.
#[derive(Clone, Copy)]
pub struct Outcome<'a> {
    response: Option<&'a Head>,
    trailers: Option<&'a HeaderMap>,
    end: RequestEnd,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestEnd {
    /// The response's body was sent in full.
    Completed,
    /// The response's body failed before its end.
    BodyFailed,
    /// There was a response, but its body was dropped before its end: the client has disconnected.
    BodyDropped,
    /// The service returned an error in place of a response.
    ServiceFailed,
    /// The request was dropped before there was a response: the client has disconnected, an outer timeout has passed, or the
    /// handler panicked.
    Dropped,
}

/// A response's head, kept until its body has ended.
#[derive(Debug)]
pub(crate) struct Head {
    status: StatusCode,
    headers: HeaderMap,
}

impl Head {
    pub(crate) fn of(parts: &Parts) -> Self {
        Self {
            status: parts.status,
            headers: parts.headers.clone(),
        }
    }
}

impl<'a> Outcome<'a> {
    pub(crate) fn new(
        response: Option<&'a Head>,
        trailers: Option<&'a HeaderMap>,
        end: RequestEnd,
    ) -> Self {
        Self {
            response,
            trailers,
            end,
        }
    }

    /// The response's status; `None` if there was no response. That of a gRPC response is 200, also if the call failed.
    pub fn status(&self) -> Option<StatusCode> {
        self.response.map(|head| head.status)
    }

    /// The response's header fields; `None` if there was no response.
    pub fn headers(&self) -> Option<&'a HeaderMap> {
        self.response.map(|head| &head.headers)
    }

    /// The status code of a gRPC call, from its trailers or else its header fields; `None` if it is no gRPC call, or ended
    /// without a code.
    pub fn grpc_status(&self) -> Option<i32> {
        let code = |fields: &HeaderMap| fields.get("grpc-status")?.to_str().ok()?.parse().ok();
        let trailers = self.trailers.and_then(code);
        trailers.or_else(|| self.headers().and_then(code))
    }

    /// How the request ended.
    pub fn end(&self) -> RequestEnd {
        self.end
    }

    /// Whether it was dropped before its outcome was known.
    pub(crate) fn is_unknown(&self) -> bool {
        match self.end {
            RequestEnd::Dropped => true,
            RequestEnd::BodyDropped => self.is_grpc() && self.grpc_status().is_none(),
            _ => false,
        }
    }

    /// Whether this is a gRPC call, by its response's content type.
    fn is_grpc(&self) -> bool {
        let content_type = self
            .headers()
            .and_then(|h| h.get(http::header::CONTENT_TYPE));
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
    }
}

impl fmt::Debug for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("status", &self.status())
            .field("grpc_status", &self.grpc_status())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// Whether the request succeeded: with a status below 400, a body that didn't fail and, for a gRPC call, code 0. A response
/// whose client disconnects before the body has been sent in full is a success.
pub fn success(outcome: &Outcome<'_>) -> bool {
    let status = outcome.status().is_some_and(|status| status.as_u16() < 400);
    let code = match outcome.grpc_status() {
        Some(code) => code == 0,
        None => !outcome.is_grpc(),
    };
    status && code && matches!(outcome.end, RequestEnd::Completed | RequestEnd::BodyDropped)
}

/// Whether the request failed in any way: the opposite of [`success`]. So it is a failure, too, if the application rejects it: by a
/// 429 of a handler, or the 413 of a body limit.
pub fn failure(outcome: &Outcome<'_>) -> bool {
    !success(outcome)
}

/// Whether the response's status is 4xx, also if the application rejects the request: by a 429 of a handler, or the 413 of a
/// body limit. Where these are not to count, name the statuses that are:
///
/// ```
/// use http::StatusCode;
/// use tollgate::{Policy, Quota};
///
/// let wrong_passwords = Policy::new("login", Quota::requests(5).per_minute())
///     .charge_after(|outcome| outcome.status() == Some(StatusCode::UNAUTHORIZED));
/// ```
pub fn client_error(outcome: &Outcome<'_>) -> bool {
    outcome
        .status()
        .is_some_and(|status| status.is_client_error())
}

/// Whether the response's status is 5xx, or the service returned an error in place of a response.
pub fn server_error(outcome: &Outcome<'_>) -> bool {
    let status = outcome
        .status()
        .is_some_and(|status| status.is_server_error());
    status || outcome.end == RequestEnd::ServiceFailed
}
