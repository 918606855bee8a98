//! The client's address behind proxies: the address that a request is counted by, line for line of the table in the docs.

use tollgate::extract::ClientIp;

use crate::http::{extractors::*, support::*};

pub(crate) const XFF: &str = "X-Forwarded-For";

/// An extractor that trusts our own networks and reads X-Forwarded-For.
pub(crate) fn trusting() -> ClientIp {
    extract::client_ip().trusted_proxies(["10.0.0.0/8", "2001:db8:ffff::/48"])
}

fn head_of(peer: &str, lines: &[(&str, &str)]) -> Parts {
    let lines = lines.iter();
    let request = lines.fold(Request::get("/"), |all, (name, value)| {
        all.header(*name, value.as_bytes())
    });
    let mut parts = head(request);
    if let Ok(peer) = peer.parse() {
        let peer = PeerAddr(SocketAddr::new(peer, 1234));
        parts.extensions.insert(peer);
    }
    parts
}

/// Asserts by which address a request from `peer` is counted.
pub(crate) fn counts(extractor: &ClientIp, peer: &str, lines: &[(&str, &str)], expected: &str) {
    let head = head_of(peer, lines);
    let address = extractor.address(&head).map(|address| address.to_string());
    assert_eq!(address.as_deref(), Some(expected), "{lines:?} from {peer}");
    assert_eq!(extractor.extract(&head).key(), Some(ip(expected)));
}

/// The same for one line from 10.0.0.1, which is trusted.
pub(crate) fn counts_from_trusted(extractor: &ClientIp, name: &str, value: &str, expected: &str) {
    counts(extractor, "10.0.0.1", &[(name, value)], expected);
}

#[test]
fn no_proxy_is_trusted_unless_named() {
    let forged = [(XFF, "198.51.100.9"), ("forwarded", "for=198.51.100.9")];
    counts(&extract::client_ip(), "192.0.2.1", &forged, "192.0.2.1");
    let untrusting = extract::client_ip().trusted_proxies([""; 0]);
    counts(&untrusting, "192.0.2.1", &forged, "192.0.2.1");
    counts(&trusting(), "192.0.2.1", &forged, "192.0.2.1");
    counts(&trusting(), "2001:db8:fffe::1", &forged, "2001:db8:fffe::1");
    #[rustfmt::skip]
    let readers = [
        trusting().forwarded(), trusting().hops(1), trusting().header("x-real-ip"), untrusting.hops(1),
        trusting().trusted_proxies(["192.0.2.0/32"]),
    ];
    for read in readers {
        counts(&read, "192.0.2.1", &forged, "192.0.2.1");
    }
}

#[test]
fn a_trusted_proxy_is_recognised_over_ipv4_and_ipv6() {
    let forwarded = [(XFF, "198.51.100.9")];
    let named_as_ipv6 = extract::client_ip().trusted_proxies(["::ffff:10.0.0.0/104"]);
    for extractor in [trusting(), named_as_ipv6] {
        for peer in ["10.0.0.1", "::ffff:10.0.0.1"] {
            counts(&extractor, peer, &forwarded, "198.51.100.9");
        }
        counts(&extractor, "::ffff:11.0.0.1", &forwarded, "11.0.0.1");
    }
    counts(&trusting(), "2001:db8:ffff::7", &forwarded, "198.51.100.9");
}

#[test]
fn a_proxy_that_forwards_no_address_is_counted_itself() {
    counts(&trusting(), "10.0.0.1", &[], "10.0.0.1");
    // One header is read, and no other: the proxy passes on what clients make of those.
    let by = "198.51.100.9";
    let others = [("forwarded", "for=198.51.100.9"), ("x-real-ip", by)];
    counts(&trusting(), "10.0.0.1", &others, "10.0.0.1");
    let forwarded = trusting().forwarded();
    for read in [
        forwarded.clone(),
        forwarded.hops(1),
        trusting().header("x-real-ip"),
    ] {
        counts(&read, "10.0.0.1", &[(XFF, by)], "10.0.0.1");
    }
}

#[test]
fn hops_count_from_the_right_whatever_the_addresses() {
    let list = "203.0.113.1, 198.51.100.9, 192.0.2.7";
    let there = [(1, "192.0.2.7"), (2, "198.51.100.9"), (3, "203.0.113.1")];
    // It didn't pass through that many proxies.
    for (hops, expected) in there.into_iter().chain([(4, "10.0.0.1"), (64, "10.0.0.1")]) {
        counts_from_trusted(&extract::client_ip().hops(hops), XFF, list, expected);
        counts_from_trusted(&trusting().hops(hops), XFF, list, expected);
    }
    let forwarded = extract::client_ip().hops(2).forwarded();
    let list = "for=203.0.113.1, for=198.51.100.9;by=\"a,b\", for=_hidden";
    counts_from_trusted(&forwarded, "forwarded", list, "198.51.100.9");
    let list = "for=203.0.113.1, for=_x, for=10.0.0.2";
    counts_from_trusted(&forwarded, "forwarded", list, "10.0.0.1");
    // An empty entry stands for a client, not for none.
    let (two, list) = (extract::client_ip().hops(2), "198.51.100.9,,10.0.0.2");
    counts_from_trusted(&two, XFF, list, "10.0.0.1");
    // One whose end isn't found hides whose the rest are.
    for line in [&*format!("for={}", "x".repeat(2_000)), "for=1.1.1.1\""] {
        let lines = [("forwarded", "for=198.51.100.9"), ("forwarded", line)];
        counts(&forwarded, "10.0.0.1", &lines, "10.0.0.1");
    }
}

#[test]
fn hops_need_no_peer_and_so_serve_unix_sockets() {
    let one = extract::client_ip().hops(1);
    counts(&one, "", &[(XFF, "198.51.100.9")], "198.51.100.9");
    assert_eq!(one.extract(&head_of("", &[])).key(), None);
    // A named proxy's peer address has to be known.
    let forged = head_of("", &[(XFF, "198.51.100.9")]);
    assert_eq!(trusting().extract(&forged).key(), None);
    assert_eq!(trusting().hops(1).extract(&forged).key(), None);
    // Such clients share one bucket.
    assert_eq!(trusting().on_missing_key(), MissingKey::Shared);
}

#[tokio::test]
async fn a_client_is_counted_by_the_configured_prefix_of_its_address() {
    let from = |address: &str| {
        let peer = PeerAddr("10.0.0.1:80".parse().expect("an address"));
        empty(Request::get("/").header(XFF, address).extension(peer))
    };
    let [v4, v6]: [IpAddr; 2] = ["198.51.100.7", "2001:db8:1:2::3"].map(|ip| ip.parse().expect(ip));
    let requests = [
        (from("198.51.100.7"), ip("198.51.100.7")),
        (from("2001:db8:1:2::3"), ip("2001:db8:1:2::")),
        (from("2001:db8:1:2:ffff::"), ip("2001:db8:1:2::")),
    ];
    each_counts_as(trusting(), requests).await;
    let requests = [
        (from("198.51.100.7"), Key::network(v4, 24, 56)),
        (from("198.51.100.8"), Key::network(v4, 24, 56)),
        (from("::ffff:198.51.100.9"), Key::network(v4, 24, 56)),
        (from("2001:db8:1:3::3"), Key::network(v6, 24, 56)),
    ];
    each_counts_as(trusting().ipv4_prefix(24).ipv6_prefix(56), requests).await;
}

/// The mistake in a limiter that counts by this.
fn mistake(extractor: ClientIp) -> ConfigError {
    let policy = || Policy::new("p", quota("1/s"));
    let error = mistake_in(policy().key(extractor.clone()));
    // Also as a part of another.
    let in_tuple = policy().key((extract::path(), extractor.clone()));
    let in_choice = policy().key(extract::path().or_else(extractor));
    assert_eq!(error, mistake_in(in_tuple));
    assert_eq!(error, mistake_in(in_choice));
    error
}

#[test]
fn config_errors_are_found_when_the_limiter_is_built() {
    let client = extract::client_ip;
    let trusts = |net: &str| client().trusted_proxies([net]);
    let (ip, none, hops) = ("x-real-ip", "no proxy to trust", "hops in a header");
    for (extractor, value, valid) in [
        (trusts("10.0.0.0/33"), "10.0.0.0/33", "CIDR such as"),
        (trusts("proxy"), "\"proxy\"", "CIDR such as"),
        (trusts(""), "\"\"", "CIDR such as"),
        (trusts("0.0.0.0/0"), "0.0.0.0/0", "own networks"),
        (trusts("::/0"), "::/0", "own networks"),
        (client().hops(0), "0 hops", "at least 1"),
        (client().hops(65), "65 hops", "at most 64"),
        (client().forwarded(), none, "trusted_proxies, or hops"),
        (client().header(ip), none, "trusted_proxies"),
        (client().header(ip).hops(1), hops, "trusted_proxies"),
        (trusting().header(ip).hops(1), hops, "trusted_proxies"),
        (trusting().header("x real ip"), "x real ip", "RFC 9110"),
        (trusting().header(XFF), "x-forwarded-for", "forwarded()"),
        (trusting().header("Forwarded"), "forwarded", "forwarded()"),
        (trusting().ipv4_prefix(33), "prefixes", "at most 32"),
        (trusting().ipv6_prefix(129), "prefixes", "128 of IPv6"),
    ] {
        let error = mistake(extractor);
        assert!(error.value().contains(value), "{error}");
        assert!(error.expected().contains(valid), "{error}");
    }
    // Lists that are fine: of all addresses, and of none.
    let own = client().trusted_proxies([IpAddr::from([10, 0, 0, 1])]);
    let none = client().trusted_proxies([""; 0]);
    #[rustfmt::skip]
    let valid = [
        client(), none.clone(), none.forwarded(), own.header("x-real-ip"), trusting().hops(64).forwarded(), client().hops(1),
    ];
    for fine in valid {
        let policy = Policy::new("p", quota("1/s")).key(fine);
        assert!(Limiter::builder().policy(policy).build().is_ok());
    }
}
