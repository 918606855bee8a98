//! `x-ratelimit-{limit,remaining}-NAME`, of OpenAI and Azure OpenAI, whose limits are buckets.

use http::StatusCode;

use super::reading::{Part, Reading};

const PREFIXES: [(&str, Part); 2] = [
    ("x-ratelimit-limit-", Part::Limit),
    ("x-ratelimit-remaining-", Part::Remaining),
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
            reading.read_units(name, part, (field, value));
        }
    }
}
