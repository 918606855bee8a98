//! Text that keys are made of.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/memory/http/inputs.rs"]
#[allow(dead_code, reason = "the other targets'")]
mod inputs;

fuzz_target!(|input: (Vec<&[u8]>, [u8; 16], u8)| {
    let (texts, address, bits) = input;
    inputs::keys_differ_where_text_does(&texts);
    inputs::a_network_is_plain(address.into(), bits);
});
