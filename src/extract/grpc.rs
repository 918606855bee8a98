use std::borrow::Cow;

use http::request::Parts;

use super::{Extracted, KeyExtractor, field};
use crate::key::Key;

/// Counts each gRPC service separately: `helloworld.Greeter` for the path `/helloworld.Greeter/SayHello`. The key is
/// [`Key::new`] of its name.
///
/// A path of fewer than two segments has no key. The content type is not read: a client can choose it, while routers use the
/// path.
///
/// ```
/// use tollgate::{Key, KeyExtractor, Policy, Quota, extract};
///
/// let request = http::Request::post("/helloworld.Greeter/SayHello").body(()).unwrap();
/// let found = extract::grpc_service().extract(&request.into_parts().0);
/// assert_eq!(found.key(), Some(Key::new("helloworld.Greeter")));
/// // Each client in each service.
/// let policy = Policy::new("calls", Quota::requests(100).per_minute())
///     .key((extract::peer(), extract::grpc_service()));
/// ```
pub fn grpc_service() -> GrpcService {
    GrpcService
}

/// The extractor of the gRPC service, from [`grpc_service`].
#[derive(Clone, Copy, Debug)]
pub struct GrpcService;

impl KeyExtractor for GrpcService {
    fn extract(&self, parts: &Parts) -> Extracted {
        let name = full_name(parts.uri.path());
        name.map(|(service, _)| Key::new(service)).into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let service = field::text(texts)?;
        (!service.contains('/')).then(|| Key::new(service))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("grpc_service".into())
    }

    fn missing_key_name(&self, _parts: Option<&Parts>) -> Cow<'static, str> {
        "a gRPC service in its path".into()
    }
}

/// Counts each gRPC method separately, by its full name: `helloworld.Greeter/SayHello`. The key is [`Key::new`]; see
/// [`grpc_service`] for requests without one.
pub fn grpc_method() -> GrpcMethod {
    GrpcMethod
}

/// The extractor of the gRPC method, from [`grpc_method`].
#[derive(Clone, Copy, Debug)]
pub struct GrpcMethod;

impl KeyExtractor for GrpcMethod {
    fn extract(&self, parts: &Parts) -> Extracted {
        let name = full_name(parts.uri.path());
        name.map(|(_, method)| Key::new(method)).into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let path = format!("/{}", field::text(texts)?);
        let (_, method) = full_name(&path)?;
        (method.len() + 1 == path.len()).then(|| Key::new(method))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("grpc_method".into())
    }

    fn missing_key_name(&self, _parts: Option<&Parts>) -> Cow<'static, str> {
        "a gRPC method in its path".into()
    }
}

/// The service, and the method with its service: the last two segments, whatever a router has put before.
fn full_name(path: &str) -> Option<(&str, &str)> {
    let (before, method) = path.rsplit_once('/')?;
    let (prefix, service) = before.rsplit_once('/')?;
    let name = path.get(prefix.len() + 1..)?;
    (!service.is_empty() && !method.is_empty()).then_some((service, name))
}
