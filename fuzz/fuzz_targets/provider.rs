//! A provider's response: its status, and lines of text, each for the field that its first byte names; and the same text as a
//! body.

#![no_main]

use http::{HeaderName, HeaderValue, StatusCode};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/memory/http/provider_checks.rs"]
mod provider_checks;

use provider_checks::{FIELDS, a_body_is_read, a_response_is_read};

fuzz_target!(|input: (u8, &[u8])| {
    let (status, text) = input;
    let status = match status & 3 {
        0 => StatusCode::OK,
        1 => StatusCode::FORBIDDEN,
        2 => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let (name, value) = line.split_first()?;
        let name = FIELDS[usize::from(*name) % FIELDS.len()];
        let value = HeaderValue::from_bytes(value).ok()?;
        Some((HeaderName::from_static(name), value))
    });
    a_response_is_read(status, &lines.take(100).collect::<Vec<_>>());
    a_body_is_read(status, text);
});
