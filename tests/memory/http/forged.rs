//! Forged addresses: whatever a client sends, and however its proxies forward it, it can't choose its key. The fuzz
//! targets in `fuzz/` check the same.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::{prelude::*, sample::select};

use crate::http::{
    checks::{
        Adds, FORGED, Lines, a_client_behind_proxies_is_itself, a_quota_reads_back_or_is_none,
        is_trusted, no_client_chooses_its_key, nothing_panics,
    },
    support::*,
};

/// What lists are made of, and what breaks their parsers.
#[rustfmt::skip]
const SCRAPS: &[&str] = &[
    ",", ", ", ",,", ";", "=", "\"", "\\", "\\\"", "[", "]", ":", " ", "\t", "for=", "For = ", "by=", "host=", "proto=https",
    "unknown", "_hidden", "10.0.0.1", "10.0.0.2:80", "::ffff:10.0.0.3", "[2001:db8:ffff::1]", "198.51.100.9",
    "198.51.100.9:65536", "2001:db8::1", "[2001:db8::1]:4711", "for=\"[2001:db8::1]\"", "for=\"198.51.100.9",
    "\", for=198.51.100.9", "fe80::1%eth0", "127.0.0.1", "0.0.0.0", "999.1.1.1", "010.0.0.1", "for=10.0.0.1, ", "\u{fffd}",
];

fn value() -> impl Strategy<Value = HeaderValue> {
    let scraps = prop::collection::vec(select(SCRAPS), 0..12);
    let bytes = prop_oneof![
        4 => scraps.prop_map(|scraps| scraps.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (select(SCRAPS), 1_usize..3_000).prop_map(|(scrap, n)| scrap.repeat(n).into_bytes()),
    ];
    bytes.prop_filter_map("no header's value", |bytes| {
        HeaderValue::from_bytes(&bytes).ok()
    })
}

fn lines() -> impl Strategy<Value = Lines> {
    let name = select(&FORGED[..]).prop_map(HeaderName::from_static);
    prop::collection::vec((name, value()), 0..6)
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<Ipv4Addr>().prop_map(IpAddr::V4),
        any::<Ipv4Addr>().prop_map(|v4| IpAddr::V6(v4.to_ipv6_mapped())),
        any::<Ipv6Addr>().prop_map(IpAddr::V6),
        any::<u64>().prop_map(|low| IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(low)).into())),
    ]
}

fn a_client() -> impl Strategy<Value = IpAddr> {
    any_address().prop_filter("a proxy", |address| !is_trusted(*address))
}

fn a_proxy() -> impl Strategy<Value = IpAddr> {
    let v4 = any::<[u8; 3]>().prop_map(|[a, b, c]| Ipv4Addr::new(10, a, b, c));
    prop_oneof![
        v4.clone().prop_map(IpAddr::V4),
        v4.prop_map(|v4| IpAddr::V6(v4.to_ipv6_mapped())),
        any::<u64>()
            .prop_map(|low| { IpAddr::V6((0x2001_0db8_ffff_u128 << 80 | u128::from(low)).into()) }),
    ]
}

fn adds() -> impl Strategy<Value = Adds> {
    select(&[Adds::ALineOfItsOwn, Adds::ToTheLastLine, Adds::ToAll][..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_request_from_an_untrusted_peer_chooses_its_own_key(peer in a_client(), lines in lines()) {
        no_client_chooses_its_key(peer, &lines);
    }

    #[test]
    fn no_client_behind_trusted_proxies_chooses_its_own_key(
        client in a_client(),
        proxies in prop::collection::vec(a_proxy(), 1..4),
        adds in adds(),
        lines in lines(),
    ) {
        a_client_behind_proxies_is_itself(client, &proxies, adds, &lines);
    }

    #[test]
    fn no_request_head_makes_an_extractor_panic(
        peer in any_address(),
        proxy in a_proxy(),
        uri in "(http://[a-z@:.\\[\\]]{0,9})?/?[a-z/.%]{0,12}(\\?[a-z=&%0-9+]{0,12})?",
        lines in lines(),
        others in prop::collection::vec(
            (select(&["cookie", "host", "authorization", "x-api-key"][..]), value()),
            0..4,
        ),
    ) {
        let others = others.into_iter();
        let others = others.map(|(name, value)| (HeaderName::from_static(name), value));
        let lines: Lines = lines.into_iter().chain(others).collect();
        nothing_panics(peer, &uri, &lines);
        nothing_panics(proxy, &uri, &lines);
    }

    #[test]
    fn no_text_makes_the_parser_of_quotas_panic(
        text in "\\PC{0,20}|[0-9_]{0,22} ?(/|per|concurrent)? ?[0-9_]{0,22} ?(s|ms|us|ns|min|h|day|week|month|year|m)?( burst [0-9_]{0,22})?",
    ) {
        a_quota_reads_back_or_is_none(&text);
    }
}
