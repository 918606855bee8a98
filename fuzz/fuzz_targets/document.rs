//! A configuration file, in each format.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/memory/documents/inputs.rs"]
mod inputs;

fuzz_target!(|text: &str| inputs::a_document_is_read_or_rejected(text));
