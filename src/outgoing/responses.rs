//! What a layer does with the responses of its client.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;

use super::obey::{HeedFuture, Obey};
use crate::{
    layer::{ResponseBody, body::InFlightRequest},
    limiter::{Admission, Keys},
};

mod sealed {
    use super::*;

    pub trait Sealed<Res> {
        /// The response of the service.
        type Output;

        /// Whether [`heed`](Sealed::heed) may do something.
        fn needs_keys(&self) -> bool {
            false
        }

        /// Reads a response to a call of these keys. `None` if it blocks nothing.
        fn heed(&self, _keys: Keys, _response: &Res) -> Option<HeedFuture> {
            None
        }

        /// Converts the client's response into that of the service, which ends the call.
        fn finish(&self, response: Res, in_flight: Box<InFlightRequest>) -> Self::Output;
    }
}
pub(super) use sealed::Sealed;

/// What an [`OutgoingLayer`](crate::OutgoingLayer) does with its client's responses: [`HttpResponse`], [`AnyResponse`] or
/// [`WithAdmission`]. Nothing else implements it.
#[diagnostic::on_unimplemented(
    message = "the client's response `{Res}` is not an `http::Response` whose body has `Bytes`",
    note = "for clients with responses of other types, make the layer by `OutgoingLayer::for_any_response`"
)]
pub trait ClientResponse<Res>: Sealed<Res> {}

/// For clients of HTTP: the default. A call ends with its response's body, and the [`Admission`] is in the extensions of the
/// response.
#[derive(Clone, Debug, Default)]
pub struct HttpResponse {
    pub(super) obey: Option<Obey>,
}

impl<B: Body<Data = Bytes>> ClientResponse<Response<B>> for HttpResponse {}

impl<B: Body<Data = Bytes>> Sealed<Response<B>> for HttpResponse {
    type Output = Response<ResponseBody<B>>;

    fn needs_keys(&self) -> bool {
        self.obey.is_some()
    }

    fn heed(&self, keys: Keys, response: &Response<B>) -> Option<HeedFuture> {
        let obey = self.obey.as_ref()?;
        obey.heed(keys, response.status(), response.headers())
    }

    fn finish(
        &self,
        response: Response<B>,
        in_flight: Box<InFlightRequest>,
    ) -> Response<ResponseBody<B>> {
        let is_empty = response.body().is_end_stream();
        let (mut response, mut in_flight) = in_flight.on_response(response, is_empty);
        let admission = in_flight.share_admission();
        response.extensions_mut().insert(admission);
        // The caller may hold the permits of a connection that is upgraded.
        if is_empty && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return response.map(ResponseBody::passthrough);
        }
        response.map(|body| ResponseBody::inner(body, in_flight))
    }
}

/// For clients with any responses, which are returned unchanged. A call ends with its response.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyResponse;

impl<Res> ClientResponse<Res> for AnyResponse {}

impl<Res> Sealed<Res> for AnyResponse {
    type Output = Res;

    fn finish(&self, response: Res, in_flight: Box<InFlightRequest>) -> Res {
        drop(in_flight.end_with_admission());
        response
    }
}

/// For clients with any responses, each of which is returned with its [`Admission`] as a tuple. A call ends with its response;
/// its permits are held for as long as the admission exists.
#[derive(Clone, Copy, Debug, Default)]
pub struct WithAdmission;

impl<Res> ClientResponse<Res> for WithAdmission {}

impl<Res> Sealed<Res> for WithAdmission {
    type Output = (Res, Admission);

    fn finish(&self, response: Res, in_flight: Box<InFlightRequest>) -> (Res, Admission) {
        (response, in_flight.end_with_admission())
    }
}
