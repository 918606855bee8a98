//! Text that may be a quota.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/memory/http/checks.rs"]
#[allow(dead_code, reason = "the other targets'")]
mod checks;

fuzz_target!(|text: &str| checks::a_quota_reads_back_or_is_none(text));
