//! What is configured: a policy's name, lists of addresses, names of headers and cookies, a server's URL.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/memory/http/inputs.rs"]
#[allow(dead_code, reason = "the other targets'")]
mod inputs;
#[path = "../../tests/memory/http/redis_inputs.rs"]
mod redis_inputs;

fuzz_target!(|text: &str| {
    inputs::a_name_is_shown_or_rejected(text);
    inputs::configuration_is_accepted_or_rejected(text);
    redis_inputs::a_store_is_accepted_or_rejected(text);
});
