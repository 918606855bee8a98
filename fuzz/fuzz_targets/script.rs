//! What a Redis server answers to the script, or something in its place does.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|reply: &[u8]| tollgate::fuzzing::script_reply(reply));
