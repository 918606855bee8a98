//! What a Redis server answers to everything but the script, or something in its place does.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|reply: &[u8]| tollgate::fuzzing::other_reply(reply));
