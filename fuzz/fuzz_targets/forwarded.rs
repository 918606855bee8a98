//! Headers that claim to be proxies': lines of text, each for the header that its first byte names.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/memory/http/checks.rs"]
#[allow(dead_code, reason = "the other targets'")]
mod checks;

use checks::{Adds, FORGED, Lines};

const ADDS: [Adds; 3] = [Adds::ALineOfItsOwn, Adds::ToTheLastLine, Adds::ToAll];

fuzz_target!(|input: (u8, [u8; 16], &[u8])| {
    let (how, address, text) = input;
    let address = match how & 3 {
        0 => IpAddr::V6(Ipv6Addr::from(address)),
        1 => IpAddr::V6(
            Ipv4Addr::from([address[0], address[1], address[2], address[3]]).to_ipv6_mapped(),
        ),
        _ => IpAddr::from([address[0], address[1], address[2], address[3]]),
    };
    let lines = lines(text);
    let proxies = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]].map(IpAddr::from);
    checks::nothing_panics(proxies[0], &String::from_utf8_lossy(text), &lines);
    if !checks::is_trusted(address) {
        checks::no_client_chooses_its_key(address, &lines);
        let (adds, hops) = (
            ADDS[usize::from(how >> 2) % 3],
            1 + usize::from(how >> 4) % 3,
        );
        checks::a_client_behind_proxies_is_itself(address, &proxies[..hops], adds, &lines);
    }
});

/// The lines that are headers.
fn lines(text: &[u8]) -> Lines {
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let (name, value) = line.split_first()?;
        let name = FORGED[usize::from(*name) % FORGED.len()];
        let value = HeaderValue::from_bytes(value).ok()?;
        Some((HeaderName::from_static(name), value))
    });
    // A header map ends at 32,768 lines, and no server reads so many.
    lines.take(100).collect()
}
