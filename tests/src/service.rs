//! A service behind a layer, without a framework.

use std::convert::Infallible;

use http::{Request, Response, request::Builder};
use tollgate::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

/// Sends a request through the layer to a service that responds 200, and returns the status of the response.
pub async fn send(layer: &RateLimitLayer, request: Builder) -> u16 {
    let request = request.body(String::new()).expect("a request");
    let hello = async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()));
    let Ok(response) = layer.layer(service_fn(hello)).oneshot(request).await;
    response.status().as_u16()
}
