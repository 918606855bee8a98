//! A request's head: its target, and lines of text, each for the header that its first byte names.

#![no_main]

use std::net::IpAddr;

use http::{HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/memory/http/checks.rs"]
#[allow(dead_code, reason = "the other targets'")]
mod checks;
#[path = "../../tests/memory/http/inputs.rs"]
#[allow(dead_code, reason = "the other targets'")]
mod inputs;

use checks::Lines;

/// The headers that extractors and answers read.
const READ: [&str; 8] = [
    "cookie",
    "authorization",
    "host",
    "x-api-key",
    "accept",
    "content-type",
    "origin",
    "access-control-request-method",
];

fuzz_target!(|input: (bool, &str, &[u8])| {
    let (trusted, uri, text) = input;
    let peer = match trusted {
        true => [10, 0, 0, 1],
        false => [192, 0, 2, 1],
    };
    let lines = lines(text);
    checks::nothing_panics(IpAddr::from(peer), uri, &lines);
    inputs::a_rejection_is_complete(uri, &lines);
});

/// The lines that are headers.
fn lines(text: &[u8]) -> Lines {
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let (name, value) = line.split_first()?;
        let name = READ[usize::from(*name) % READ.len()];
        let value = HeaderValue::from_bytes(value).ok()?;
        Some((HeaderName::from_static(name), value))
    });
    lines.take(100).collect()
}
