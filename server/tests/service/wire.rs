//! The messages have the bytes of those that are generated from the protocol's definition.

use std::fmt::Debug;

use envoy_types::pb::envoy::{
    config::core::v3 as core, extensions::common::ratelimit::v3 as common,
    service::ratelimit::v3 as service, r#type::v3::RateLimitUnit,
};
use envoy_types::pb::google::protobuf as google;
use proptest::{collection::vec, option, prelude::*};
use prost::Message;
use tollgate_server::proto;

type Unit = service::rate_limit_response::rate_limit::Unit;

/// Each is read from the other's bytes, and written as the same bytes.
fn assert_same<A, B>(ours: &A, theirs: &B)
where
    A: Message + Default + PartialEq + Debug,
    B: Message + Default + PartialEq + Debug,
{
    let (our_bytes, their_bytes) = (ours.encode_to_vec(), theirs.encode_to_vec());
    assert_eq!(our_bytes, their_bytes);
    assert_eq!(&A::decode(&*their_bytes).expect("a message"), ours);
    assert_eq!(&B::decode(&*our_bytes).expect("a message"), theirs);
}

fn text() -> impl Strategy<Value = String> {
    "[a-z*é]{0,5}"
}

fn unit() -> impl Strategy<Value = i32> {
    0..=7i32
}

/// The arguments of a descriptor: entries, limit, cost, whether it is given back.
type DescriptorParts = (Vec<(String, String)>, Option<(u32, i32)>, Option<u64>, bool);

fn descriptor() -> impl Strategy<Value = DescriptorParts> {
    let cost = option::of(prop_oneof![Just(0), any::<u64>()]);
    (
        vec((text(), text()), 0..4),
        option::of((any::<u32>(), unit())),
        cost,
        any::<bool>(),
    )
}

fn our_descriptor(
    (entries, limit, hits_addend, is_negative_hits): DescriptorParts,
) -> proto::RateLimitDescriptor {
    let entries = entries.into_iter().map(|(key, value)| proto::Entry {
        key,
        value: value.into_bytes(),
    });
    let limit = limit.map(|(requests_per_unit, unit)| proto::RateLimitOverride {
        requests_per_unit,
        unit,
    });
    proto::RateLimitDescriptor {
        entries: entries.collect(),
        limit,
        hits_addend,
        is_negative_hits,
    }
}

fn their_descriptor(
    (entries, limit, hits_addend, is_negative_hits): DescriptorParts,
) -> common::RateLimitDescriptor {
    use common::rate_limit_descriptor::{Entry, RateLimitOverride};
    let entries = entries.into_iter().map(|(key, value)| Entry { key, value });
    let limit = limit.map(|(requests_per_unit, unit)| RateLimitOverride {
        requests_per_unit,
        unit,
    });
    common::RateLimitDescriptor {
        entries: entries.collect(),
        limit,
        hits_addend: hits_addend.map(|value| google::UInt64Value { value }),
        is_negative_hits,
    }
}

/// The arguments of a status: code, limit, units left, and the time until the reset.
type StatusParts = (i32, Option<(u32, i32, String)>, u32, Option<(i64, i32)>);

fn status() -> impl Strategy<Value = StatusParts> {
    let limit = option::of((any::<u32>(), unit(), text()));
    (
        0..=2i32,
        limit,
        any::<u32>(),
        option::of((any::<i64>(), any::<i32>())),
    )
}

fn our_status((code, limit, limit_remaining, duration): StatusParts) -> proto::DescriptorStatus {
    proto::DescriptorStatus {
        code,
        current_limit: limit.map(|(requests_per_unit, unit, name)| proto::RateLimit {
            requests_per_unit,
            unit,
            name,
        }),
        limit_remaining,
        duration_until_reset: duration
            .map(|(seconds, nanos)| prost_types::Duration { seconds, nanos }),
    }
}

fn their_status(
    (code, limit, limit_remaining, duration): StatusParts,
) -> service::rate_limit_response::DescriptorStatus {
    use service::rate_limit_response::{DescriptorStatus, RateLimit};
    DescriptorStatus {
        code,
        current_limit: limit.map(|(requests_per_unit, unit, name)| RateLimit {
            name,
            requests_per_unit,
            unit,
        }),
        limit_remaining,
        duration_until_reset: duration.map(|(seconds, nanos)| google::Duration { seconds, nanos }),
        quota: None,
    }
}

type HeaderParts = (String, String, Vec<u8>);

fn headers() -> impl Strategy<Value = Vec<HeaderParts>> {
    vec((text(), text(), vec(any::<u8>(), 0..4)), 0..3)
}

fn our_headers(headers: Vec<HeaderParts>) -> Vec<proto::HeaderValue> {
    let headers = headers.into_iter();
    headers
        .map(|(key, value, raw_value)| proto::HeaderValue {
            key,
            value,
            raw_value,
        })
        .collect()
}

fn their_headers(headers: Vec<HeaderParts>) -> Vec<core::HeaderValue> {
    let headers = headers.into_iter();
    headers
        .map(|(key, value, raw_value)| core::HeaderValue {
            key,
            value,
            raw_value,
        })
        .collect()
}

/// A field of metadata: more than one would have no order.
fn metadata() -> impl Strategy<Value = Option<(String, f64)>> {
    option::of((text(), -9.0..9.0))
}

proptest! {
    #[test]
    fn requests_have_the_bytes_of_the_definition(
        domain in text(),
        descriptors in vec(descriptor(), 0..4),
        hits_addend in any::<u32>(),
    ) {
        let ours = proto::RateLimitRequest {
            domain: domain.clone(),
            descriptors: descriptors.iter().cloned().map(our_descriptor).collect(),
            hits_addend,
        };
        let theirs = service::RateLimitRequest {
            domain,
            descriptors: descriptors.into_iter().map(their_descriptor).collect(),
            hits_addend,
        };
        assert_same(&ours, &theirs);
    }

    #[test]
    fn responses_have_the_bytes_of_the_definition(
        overall_code in 0..=2i32,
        statuses in vec(status(), 0..4),
        response_headers in headers(),
        request_headers in headers(),
        raw_body in vec(any::<u8>(), 0..9),
        metadata in metadata(),
    ) {
        let ours = proto::RateLimitResponse {
            overall_code,
            statuses: statuses.iter().cloned().map(our_status).collect(),
            response_headers_to_add: our_headers(response_headers.clone()),
            request_headers_to_add: our_headers(request_headers.clone()),
            raw_body: raw_body.clone(),
            dynamic_metadata: metadata.clone().map(|(name, number)| {
                let kind = Some(prost_types::value::Kind::NumberValue(number));
                prost_types::Struct { fields: [(name, prost_types::Value { kind })].into() }
            }),
        };
        let theirs = service::RateLimitResponse {
            overall_code,
            statuses: statuses.into_iter().map(their_status).collect(),
            response_headers_to_add: their_headers(response_headers),
            request_headers_to_add: their_headers(request_headers),
            raw_body,
            dynamic_metadata: metadata.map(|(name, number)| {
                let kind = Some(google::value::Kind::NumberValue(number));
                google::Struct { fields: [(name, google::Value { kind })].into() }
            }),
            quota: None,
        };
        assert_same(&ours, &theirs);
    }
}

#[test]
fn units_and_codes_have_the_numbers_and_names_of_the_definition() {
    for unit in tollgate_server::rules::Unit::ALL {
        let number = unit as i32;
        assert_eq!(
            Unit::try_from(number).expect("a unit").as_str_name(),
            unit.name()
        );
        // Limits of descriptors have no weeks yet.
        match RateLimitUnit::try_from(number) {
            Ok(theirs) => assert_eq!(theirs.as_str_name(), unit.name()),
            Err(_) => assert_eq!(unit.name(), "WEEK"),
        }
    }
    for code in [
        proto::Code::Unknown,
        proto::Code::Ok,
        proto::Code::OverLimit,
    ] {
        let theirs = service::rate_limit_response::Code::try_from(i32::from(code));
        assert_eq!(theirs.expect("a code").as_str_name(), code.name());
    }
}
