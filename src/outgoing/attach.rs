use http::{Response, response::Parts};

use crate::admission::Admission;

/// What is done with a request's [`Admission`] when there is a response.
pub trait AttachAdmission<Res> {
    /// What the caller gets.
    type Output;

    /// The response as HTTP would put it, for policies that [charge](crate::Policy::charge_after) by the outcome: 200 unless it says
    /// otherwise.
    fn head(&self, _response: &Res) -> Parts {
        Response::new(()).into_parts().0
    }

    /// Makes it of the response.
    fn attach(&self, response: Res, admission: Admission) -> Self::Output;
}

/// The response stays as it is; the admission is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl<Res> AttachAdmission<Res> for Discard {
    type Output = Res;

    fn attach(&self, response: Res, _admission: Admission) -> Res {
        response
    }
}

/// The caller gets both the response and its admission.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsTuple;

impl<Res> AttachAdmission<Res> for AsTuple {
    type Output = (Res, Admission);

    fn attach(&self, response: Res, admission: Admission) -> (Res, Admission) {
        (response, admission)
    }
}

/// The admission goes into the extensions of a response of HTTP's. Its head is what policies that charge by the outcome
/// look at; its body isn't waited for.
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
