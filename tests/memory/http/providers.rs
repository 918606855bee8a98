//! Responses of providers that may be anything. The fuzz target `provider` checks the same.

use proptest::{prelude::*, sample::select};

use crate::http::{
    provider_checks::{FIELDS, a_body_is_read, a_response_is_read},
    support::*,
};

const STATUSES: [u16; 4] = [200, 403, 429, 503];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_response_of_a_provider_is_read_out_of_bounds(
        status in select(&STATUSES[..]),
        lines in prop::collection::vec(
            (
                select(&FIELDS[..]),
                "[0-9]{1,21}(\\.[0-9]{0,12})?|([0-9]{1,21}(h|m|s|ms))*|\"[a-z]*\";(r|q|t)=-?[0-9]{1,16}(;t=[0-9.]{1,6})?|(limit|reset)=[0-9]{1,16}, remaining=0|rejected|8|14|[A-Za-z0-9+/]{0,40}={0,2}|\\PC{0,20}",
            ),
            0..12,
        ),
        suffixes in prop::collection::vec("[a-z-]{0,70}", 0..4),
    ) {
        let lines = lines.into_iter().map(|(name, value)| (name.to_owned(), value));
        let named = suffixes.into_iter().map(|suffix| (format!("x-ratelimit-limit-{suffix}"), "1".to_owned()));
        let lines = lines.chain(named).filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_bytes(value.as_bytes()).ok()?))
        });
        let status = StatusCode::from_u16(status).expect("a status");
        a_response_is_read(status, &lines.collect::<Vec<_>>());
    }

    #[test]
    fn no_body_of_a_provider_is_read_out_of_bounds(
        status in select(&STATUSES[..]),
        values in prop::collection::vec("-?[0-9]{1,25}(\\.[0-9]{1,20})?(e[0-9]{1,3})?|\"[0-9]{0,12}(\\.[0-9]{1,12})?s?\"|null|\\[\\]|\"\\PC{0,20}\"", 8),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let status = StatusCode::from_u16(status).expect("a status");
        a_body_is_read(status, &bytes);
        let values: [String; 8] = values.try_into().expect("eight values");
        let [a, b, c, d, e, f, g, h] = values;
        a_body_is_read(status, format!(
            r#"{{"error": {{"status": {a}, "details": [
                {{"@type": "google.rpc.RetryInfo", "retryDelay": {b}}},
                {{"@type": "google.rpc.QuotaFailure", "violations": [{{"quotaId": {c}, "quotaValue": {d}}}]}}]}},
              "errors": [{{"type": "RATE_LIMITED", "extensions": {{"code": "THROTTLED"}}}}],
              "extensions": {{"cost": {{"requestedQueryCost": {e}, "throttleStatus": {{
                "maximumAvailable": {f}, "currentlyAvailable": {g}, "restoreRate": {h}}}}}}},
              "data": {{"rateLimit": {{"limit": {e}, "remaining": {f}, "resetAt": {g}}}}}}}"#
        ).as_bytes());
    }
}
