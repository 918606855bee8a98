//! `x-ratelimit-{limit,remaining,reset}-NAME`, of OpenAI and Azure OpenAI.

use http::StatusCode;

use super::{
    feedback::Reset,
    reading::{Part, Reading},
    text::{Instant, go_duration},
};

const PREFIXES: [(&str, Part); 3] = [
    ("x-ratelimit-limit-", Part::Limit),
    ("x-ratelimit-remaining-", Part::Remaining),
    ("x-ratelimit-reset-", Part::Reset),
];

pub(super) fn read(reading: &mut Reading<'_>, status: StatusCode) {
    read_limits(reading);
    if let Some(cause) = reading.refusing_status(status) {
        reading.refuse(cause);
    }
}

fn read_limits(reading: &mut Reading<'_>) {
    for (field, value) in reading.headers {
        let part = PREFIXES
            .iter()
            .find_map(|(prefix, part)| Some((field.as_str().strip_prefix(prefix)?, *part)));
        if let Some((name, part)) = part {
            reading.read_part(name, part, (field, value), parse_reset);
        }
    }
}

/// A duration of Go, after which the bucket is full.
fn parse_reset(text: &str, _: Instant) -> Option<Reset> {
    go_duration(text).map(Reset::Full)
}
