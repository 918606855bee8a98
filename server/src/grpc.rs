//! The gRPC service.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{sync::Semaphore, task::JoinError};
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    codegen::StdError,
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::{
    engine::{Engine, Refusal},
    proto::{self, RateLimitRequest, RateLimitResponse},
};

/// The engine, with a bound on how many requests it decides at once.
#[derive(Clone, Debug)]
pub(crate) struct Decider {
    pub(crate) engine: Engine,
    permits: Arc<Semaphore>,
    max_requests: usize,
}

/// The names in client certificates whose holders may send credits.
pub(crate) type CreditNames = Arc<[String]>;

/// The service, as tonic routes to it.
#[derive(Clone, Debug)]
pub(crate) struct RateLimitService {
    pub(crate) decider: Decider,
    pub(crate) credit_names: CreditNames,
}

/// Why a request was not decided.
pub(crate) enum Undecided {
    /// As many as this are being decided.
    TooMany(usize),
    Refused(Refusal),
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(max) => write!(
                f,
                "too many concurrent requests: at most {max} (--max-requests)"
            ),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl Decider {
    pub(crate) fn new(engine: Engine, max_requests: usize) -> Self {
        let permits = Semaphore::new(max_requests.min(Semaphore::MAX_PERMITS));
        Self {
            engine,
            permits: Arc::new(permits),
            max_requests,
        }
    }

    /// Decides a request, unless too many are being decided. What it charges stays charged if its client has given up: it may report
    /// what a request has cost.
    pub(crate) async fn decide(
        &self,
        request: RateLimitRequest,
        may_credit: bool,
    ) -> Result<RateLimitResponse, Undecided> {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            self.engine.count_overload();
            return Err(Undecided::TooMany(self.max_requests));
        };
        let engine = self.engine.clone();
        // A task goes on when its handle is dropped.
        let decided = tokio::spawn(async move {
            let decided = engine.decide(&request, may_credit).await;
            drop(permit);
            decided
        });
        let ended = |error: JoinError| Refusal::Internal(error.to_string());
        let decided = decided.await.unwrap_or_else(|error| Err(ended(error)));
        decided.map_err(Undecided::Refused)
    }
}

impl From<Undecided> for Status {
    fn from(undecided: Undecided) -> Self {
        let code = match undecided {
            Undecided::TooMany(_) => Code::ResourceExhausted,
            Undecided::Refused(Refusal::Invalid(_)) => Code::InvalidArgument,
            Undecided::Refused(Refusal::Denied) => Code::PermissionDenied,
            Undecided::Refused(Refusal::Unsupported(_)) => Code::FailedPrecondition,
            Undecided::Refused(Refusal::Store(_)) => Code::Unavailable,
            Undecided::Refused(Refusal::Internal(_)) => Code::Internal,
        };
        Self::new(code, undecided.to_string())
    }
}

impl RateLimitService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let wants_credit = |request: &RateLimitRequest| {
            request
                .descriptors
                .iter()
                .any(|descriptor| descriptor.is_negative_hits)
        };
        let may_credit = wants_credit(request.get_ref()) && self.is_listed(&request);
        let decided = self.decider.decide(request.into_inner(), may_credit);
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

impl NamedService for RateLimitService {
    const NAME: &'static str = proto::SERVICE;
}

impl<B> Service<http::Request<B>> for RateLimitService
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if request.uri().path() != proto::SHOULD_RATE_LIMIT {
            let unknown = Status::unimplemented("unknown method; expected ShouldRateLimit");
            return Box::pin(async move { Ok(unknown.into_http()) });
        }
        let method = ShouldRateLimit(self.clone());
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.unary(method, request).await)
        })
    }
}

/// The method, as tonic calls it.
struct ShouldRateLimit(RateLimitService);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { service.should_rate_limit(request).await })
    }
}
