//! The gRPC service, and server reflection, by which clients such as `grpcurl` learn the messages.

use std::{future::Future, pin::Pin, sync::Arc};

use axum::{extract, routing::any};
use tonic::{
    Code, Request, Response, Status,
    server::{Grpc, UnaryService},
    service::Routes,
};
use tonic_prost::ProstCodec;
use tonic_reflection::server::{Builder, Error};

use crate::{
    engine::{Engine, Refusal},
    proto::{self, RateLimitRequest, RateLimitResponse},
    serve::MAX_MESSAGE_BYTES,
};

/// The definition of the messages and of what they need, without the fields that the server does not know: `proto/` as `protoc` compiles it.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.binpb");

/// The service, as tonic calls it.
#[derive(Clone)]
struct RateLimitService {
    engine: Engine,
    /// The names in client certificates whose holders may send credits.
    credit_names: Arc<[String]>,
}

/// The services of rate limits and of reflection.
pub(crate) fn routes(engine: Engine, credit_names: &[String]) -> Result<Routes, Error> {
    let service = RateLimitService {
        engine,
        credit_names: credit_names.into(),
    };
    let answer = |request: extract::Request| async {
        Grpc::new(ProstCodec::default())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .unary(service, request)
            .await
    };
    let routes = Routes::default().into_axum_router();
    let routes = routes.route(proto::SHOULD_RATE_LIMIT, any(answer));
    let reflection = Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    Ok(Routes::from(routes).add_service(reflection))
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::TooMany(_) => Code::ResourceExhausted,
            Refusal::Invalid(_) => Code::InvalidArgument,
            Refusal::Denied => Code::PermissionDenied,
            Refusal::Unsupported(_) => Code::FailedPrecondition,
            Refusal::Store(_) => Code::Unavailable,
            Refusal::Internal(_) => Code::Internal,
        };
        Self::new(code, refusal.to_string())
    }
}

impl RateLimitService {
    async fn should_rate_limit(
        self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let wants_credit = |request: &RateLimitRequest| {
            request
                .descriptors
                .iter()
                .any(|descriptor| descriptor.is_negative_hits)
        };
        let may_credit = wants_credit(request.get_ref()) && self.is_listed(&request);
        let decided = self.engine.decide(request.into_inner(), may_credit);
        Ok(Response::new(decided.await?))
    }

    /// Whether the client's certificate, which the TLS library has verified, has a name that is listed.
    fn is_listed(&self, request: &Request<RateLimitRequest>) -> bool {
        let certificates = request.peer_certs();
        let certificate = certificates
            .as_ref()
            .and_then(|certificates| certificates.first());
        let parsed = certificate.and_then(|der| webpki::EndEntityCert::try_from(der).ok());
        parsed.is_some_and(|certificate| {
            let mut names = certificate
                .valid_dns_names()
                .chain(certificate.valid_uri_names());
            names.any(|name| self.credit_names.iter().any(|listed| listed == name))
        })
    }
}

impl UnaryService<RateLimitRequest> for RateLimitService {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        Box::pin(self.clone().should_rate_limit(request))
    }
}
