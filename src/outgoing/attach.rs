use http::{Response, response::Parts};

use crate::limiter::Admission;

/// Passes a request's [`Admission`] to the caller of a client: set by [`OutgoingLayer::attach`](crate::OutgoingLayer::attach).
/// [`Discard`], [`AsTuple`] and [`InExtensions`] implement it.
pub trait AttachAdmission<Res> {
    /// The response of the service.
    type Output;

    /// The head of an HTTP response that stands for `_response`, for policies that [charge](crate::Policy::charge_after) by the
    /// outcome. Default: status 200 without fields.
    fn head(&self, _response: &Res) -> Parts {
        Response::new(()).into_parts().0
    }

    /// Converts the inner service's response, and the request's admission, into the response of the service.
    fn attach(&self, response: Res, admission: Admission) -> Self::Output;
}

/// Returns the response unchanged, and drops the admission: the default of an [`OutgoingLayer`](crate::OutgoingLayer).
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl<Res> AttachAdmission<Res> for Discard {
    type Output = Res;

    fn attach(&self, response: Res, _admission: Admission) -> Res {
        response
    }
}

/// Returns the response and its admission as a tuple.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsTuple;

impl<Res> AttachAdmission<Res> for AsTuple {
    type Output = (Res, Admission);

    fn attach(&self, response: Res, admission: Admission) -> (Res, Admission) {
        (response, admission)
    }
}

/// Puts the admission into the extensions of an HTTP response. Policies that charge by the outcome see the response's head; its
/// body isn't awaited.
#[derive(Clone, Copy, Debug, Default)]
pub struct InExtensions;

impl<B> AttachAdmission<Response<B>> for InExtensions {
    type Output = Response<B>;

    fn head(&self, response: &Response<B>) -> Parts {
        let (mut head, ()) = Response::new(()).into_parts();
        head.status = response.status();
        head.headers = response.headers().clone();
        head
    }

    fn attach(&self, mut response: Response<B>, admission: Admission) -> Response<B> {
        response.extensions_mut().insert(admission);
        response
    }
}
