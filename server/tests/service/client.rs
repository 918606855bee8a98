//! A gRPC client.

use http::uri::PathAndQuery;
use tollgate_server::{
    proto::{
        self, Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, RateLimitRequest,
        RateLimitResponse,
    },
    serve::Server,
};
use tonic::{
    Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::scene::TEST_TIMEOUT;

/// A connection to a server.
#[derive(Clone)]
pub(crate) struct Client(Grpc<Channel>);

impl Client {
    pub(crate) fn of(server: &Server) -> Self {
        Self::to(&format!("http://{}", server.grpc()))
    }

    pub(crate) fn to(url: &str) -> Self {
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("a URL");
        Self::on(endpoint.timeout(TEST_TIMEOUT).connect_lazy())
    }

    pub(crate) fn on(channel: Channel) -> Self {
        Self(Grpc::new(channel))
    }

    pub(crate) async fn send(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let mut grpc = self.0.clone();
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(proto::SHOULD_RATE_LIMIT);
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        let response = grpc
            .unary(tonic::Request::new(request), path, codec)
            .await?;
        Ok(response.into_inner())
    }

    /// The response to a request with these descriptors.
    pub(crate) async fn ask<const N: usize>(
        &self,
        descriptors: [RateLimitDescriptor; N],
    ) -> RateLimitResponse {
        let response = self.send(request(descriptors)).await.expect("a response");
        assert_eq!(response.statuses.len(), N);
        response
    }

    /// Whether a request with this descriptor may pass.
    pub(crate) async fn passes(&self, descriptor: RateLimitDescriptor) -> bool {
        !is_over(&self.ask([descriptor]).await)
    }

    /// The units left under the limit of a descriptor.
    pub(crate) async fn left(&self, descriptor: RateLimitDescriptor) -> u32 {
        self.ask([cost(descriptor, 0)]).await.statuses[0].limit_remaining
    }
}

pub(crate) fn request<const N: usize>(descriptors: [RateLimitDescriptor; N]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "test".to_owned(),
        descriptors: descriptors.into(),
        hits_addend: 0,
    }
}

pub(crate) fn entry(key: &str, value: &str) -> Entry {
    Entry {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
    }
}

/// A descriptor with these entries.
pub(crate) fn descriptor<const N: usize>(entries: [(&str, &str); N]) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: entries.map(|(key, value)| entry(key, value)).into(),
        ..RateLimitDescriptor::default()
    }
}

pub(crate) fn cost(descriptor: RateLimitDescriptor, units: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(units),
        ..descriptor
    }
}

pub(crate) fn is_over(response: &RateLimitResponse) -> bool {
    response.overall_code == i32::from(Code::OverLimit)
}

/// The limit of the first descriptor.
pub(crate) fn limit_of(response: &RateLimitResponse) -> &RateLimit {
    let limit = response.statuses[0].current_limit.as_ref();
    limit.expect("a limit")
}

/// Whether each descriptor is over its limit.
pub(crate) fn over(response: &RateLimitResponse) -> Vec<bool> {
    let over = |status: &DescriptorStatus| status.code == i32::from(Code::OverLimit);
    response.statuses.iter().map(over).collect()
}

/// The value of a field of the response to the client.
pub(crate) fn header<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = response.response_headers_to_add.iter();
    Some(&headers.find(|header| header.key == name)?.value)
}
