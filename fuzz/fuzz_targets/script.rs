//! What a Redis server answers to the script, or something in its place does.

#![cfg_attr(fuzzing, no_main)]

// What it calls is compiled for fuzzing alone, and runs as a property test otherwise.
#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|reply: &[u8]| tollgate::fuzzing::script_reply(reply));

#[cfg(not(fuzzing))]
fn main() {}
