//! The messages of the protocol, package `envoy.service.ratelimit.v3`, with the fields that this server reads or writes. Unknown
//! fields are skipped.

use std::borrow::Cow;

use prost::{Enumeration, Message};

/// The service's name.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The path of its only method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A request: may these descriptors pass?
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// The domain, whose rules apply.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What is limited. Each is judged by itself; the request is over the limit if one of them is.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The cost of descriptors that set none; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// A descriptor: what a rule is found by, and what it counts.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The entries, in order.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// The limit, in place of a rule's.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The cost, in place of the request's; 0 only peeks. A `google.protobuf.UInt64Value`.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the cost is a credit: it is given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// An entry of a descriptor.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value. By the protocol it is text; clients write bytes of requests into it, whatever they are.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

impl Entry {
    /// The value as text, with U+FFFD in place of bytes that are not UTF-8.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.value)
    }
}

/// A limit that a descriptor brings.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimitOverride {
    /// Requests per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The number of a [`Unit`](crate::rules::Unit), or 0 for none.
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// A response.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// Whether the request may pass.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Added to the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Added to the request to the upstream.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of the response to a request that may not pass.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// For filters behind the proxy's rate limit filter.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<prost_types::Struct>,
}

/// What became of a request or a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Never sent.
    Unknown = 0,
    /// It may pass.
    Ok = 1,
    /// It is over the limit.
    OverLimit = 2,
}

impl Code {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ok => "OK",
            Self::OverLimit => "OVER_LIMIT",
        }
    }
}

/// The status of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// Whether it is over its limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit; `None` if none applies.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// The units left.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// The time until all units are back; over the limit, until this cost is admitted.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<prost_types::Duration>,
}

/// A limit, as a response has it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimit {
    /// Requests per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The number of a [`Unit`](crate::rules::Unit), or 0 for none.
    #[prost(int32, tag = "2")]
    pub unit: i32,
    /// The limit's name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A header field, an `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderValue {
    /// The field's name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The field's value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The field's value in bytes, in place of the text.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}
