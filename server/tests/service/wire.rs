//! The messages have the bytes of those that are generated from the protocol's definition. That each field means the same, clients of
//! the definition show: `foreign` and `real_envoy`.

use std::fmt::Debug;

use envoy_types::pb::{
    envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{self, DescriptorStatus, RateLimit},
        },
        r#type::v3::RateLimitUnit,
    },
    google::protobuf as google,
};
use proptest::{collection::vec, option, prelude::*};
use prost::Message;
use tollgate_server::proto;

/// A message is read from the definition's bytes, and written as the same bytes.
fn assert_same<Ours: Message + Default + Debug>(theirs: &(impl Message + Debug)) {
    let bytes = theirs.encode_to_vec();
    let ours = Ours::decode(&*bytes).expect("a message");
    assert_eq!(ours.encode_to_vec(), bytes, "{theirs:?} {ours:?}");
}

fn text() -> impl Strategy<Value = String> {
    "[a-z*é]{0,5}"
}

fn unit() -> impl Strategy<Value = i32> {
    0..=7i32
}

fn descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let entry = (text(), text()).prop_map(|(key, value)| Entry { key, value });
    let limit = (any::<u32>(), unit());
    let limit = limit.prop_map(|(requests_per_unit, unit)| RateLimitOverride {
        requests_per_unit,
        unit,
    });
    let cost = option::of(prop_oneof![Just(0), any::<u64>()]);
    let parts = (vec(entry, 0..4), option::of(limit), cost, any::<bool>());
    parts.prop_map(
        |(entries, limit, cost, is_negative_hits)| RateLimitDescriptor {
            entries,
            limit,
            hits_addend: cost.map(|value| google::UInt64Value { value }),
            is_negative_hits,
        },
    )
}

fn status() -> impl Strategy<Value = DescriptorStatus> {
    let limit = (any::<u32>(), unit(), text());
    let limit = limit.prop_map(|(requests_per_unit, unit, name)| RateLimit {
        name,
        requests_per_unit,
        unit,
    });
    let duration = (any::<i64>(), any::<i32>());
    let duration = duration.prop_map(|(seconds, nanos)| google::Duration { seconds, nanos });
    let parts = (
        0..=2i32,
        option::of(limit),
        any::<u32>(),
        option::of(duration),
    );
    parts.prop_map(
        |(code, current_limit, limit_remaining, duration_until_reset)| DescriptorStatus {
            code,
            current_limit,
            limit_remaining,
            duration_until_reset,
            quota: None,
        },
    )
}

fn headers() -> impl Strategy<Value = Vec<HeaderValue>> {
    let header = (text(), text(), vec(any::<u8>(), 0..4));
    let header = header.prop_map(|(key, value, raw_value)| HeaderValue {
        key,
        value,
        raw_value,
    });
    vec(header, 0..3)
}

/// Of one field: more would have no order.
fn metadata() -> impl Strategy<Value = google::Struct> {
    (text(), -9.0..9.0).prop_map(|(name, number)| {
        let kind = Some(google::value::Kind::NumberValue(number));
        google::Struct {
            fields: [(name, google::Value { kind })].into(),
        }
    })
}

proptest! {
    #[test]
    fn requests_have_the_bytes_of_the_definition(
        domain in text(),
        descriptors in vec(descriptor(), 0..4),
        hits_addend in any::<u32>(),
    ) {
        assert_same::<proto::RateLimitRequest>(&RateLimitRequest { domain, descriptors, hits_addend });
    }

    #[test]
    fn responses_have_the_bytes_of_the_definition(
        overall_code in 0..=2i32,
        statuses in vec(status(), 0..4),
        response_headers_to_add in headers(),
        request_headers_to_add in headers(),
        raw_body in vec(any::<u8>(), 0..9),
        dynamic_metadata in option::of(metadata()),
    ) {
        assert_same::<proto::RateLimitResponse>(&RateLimitResponse {
            overall_code,
            statuses,
            response_headers_to_add,
            request_headers_to_add,
            raw_body,
            dynamic_metadata,
            quota: None,
        });
    }
}

#[test]
fn units_and_codes_have_the_numbers_and_names_of_the_definition() {
    for unit in tollgate_server::rules::Unit::ALL {
        let theirs = rate_limit_response::rate_limit::Unit::try_from(unit as i32);
        assert_eq!(theirs.expect("a unit").as_str_name(), unit.name());
        // Limits of descriptors have no weeks yet.
        match RateLimitUnit::try_from(unit as i32) {
            Ok(theirs) => assert_eq!(theirs.as_str_name(), unit.name()),
            Err(_) => assert_eq!(unit.name(), "WEEK"),
        }
    }
    for code in [
        proto::Code::Unknown,
        proto::Code::Ok,
        proto::Code::OverLimit,
    ] {
        let theirs = rate_limit_response::Code::try_from(i32::from(code));
        assert_eq!(theirs.expect("a code").as_str_name(), code.name());
    }
}
