//! The client is the peer of the connection, whatever its headers contain, or what trusted proxies report: lists of every shape,
//! well-formed and not, and headers of one address.

use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};
use tollgate::extract::ClientIp;

use crate::http::{extractors::*, support::*};

const XFF: &str = "X-Forwarded-For";

/// An extractor that trusts our own networks and reads X-Forwarded-For.
fn trusting() -> ClientIp {
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
fn counts(extractor: &ClientIp, peer: &str, lines: &[(&str, &str)], expected: &str) {
    let head = head_of(peer, lines);
    let address = extractor.address(&head).map(|address| address.to_string());
    assert_eq!(address.as_deref(), Some(expected), "{lines:?} from {peer}");
    assert_eq!(extractor.extract(&head).key(), Some(ip(expected)));
}

/// The same for one line from 10.0.0.1, which is trusted.
fn counts_from_trusted(extractor: &ClientIp, name: &str, value: &str, expected: &str) {
    counts(extractor, "10.0.0.1", &[(name, value)], expected);
}

/// The same for each of these: `list -> address`.
fn each_counts(extractor: &ClientIp, name: &str, cases: &[impl AsRef<str>]) {
    for case in cases {
        let case = case.as_ref();
        let (list, expected) = case.split_once(" -> ").expect(case);
        counts_from_trusted(extractor, name, list, expected);
    }
}

#[tokio::test]
async fn a_peer_counts_by_its_address_without_the_port_or_by_its_prefix() {
    let [v4, v6] = ["198.51.100.7", "2001:db8:1:2::3"].map(|ip| ip.parse().expect(ip));
    let set = Request::get("/").extension(ConnectInfo(address("192.0.2.1:1")));
    let set = set.extension(MockConnectInfo(address("192.0.2.3:1")));
    #[rustfmt::skip]
    let requests = [
        (from(ConnectInfo(address("192.0.2.1:1234"))), ip("192.0.2.1")),
        (from(MockConnectInfo(address("192.0.2.2:1"))), ip("192.0.2.2")),
        // What the application sets is preferred to what the server has.
        (empty(set.extension(PeerAddr(address("192.0.2.4:1")))), ip("192.0.2.4")),
        // The same client over IPv6's mapping, and a subscriber's whole network.
        (from_peer("[::ffff:192.0.2.3]:1"), ip("192.0.2.3")),
        (from_peer("[2001:db8::ffff:1]:1"), ip("2001:db8::")),
        (from_peer("[2001:db8:0:1::1]:1"), ip("2001:db8:0:1::")),
    ];
    each_counts_as(extract::peer(), requests).await;
    let wide = arc(extract::peer().ipv4_prefix(24).ipv6_prefix(48));
    let forwarded = arc(extract::client_ip().ipv4_prefix(24).ipv6_prefix(48));
    for extractor in [wide, forwarded] {
        let requests = [
            (from_peer("198.51.100.8:1"), Key::network(v4, 24, 48)),
            (
                from_peer("[::ffff:198.51.100.9]:1"),
                Key::network(v4, 24, 48),
            ),
            (from_peer("[2001:db8:1:3::3]:1"), Key::network(v6, 24, 48)),
        ];
        each_counts_as(extractor, requests).await;
    }
}

#[test]
fn no_proxy_is_trusted_unless_named() {
    let forged = [
        (XFF, "198.51.100.9"),
        ("forwarded", "for=198.51.100.9"),
        ("x-real-ip", "198.51.100.9"),
    ];
    let client = extract::client_ip;
    let none = client().trusted_proxies([""; 0]);
    counts(&trusting(), "2001:db8:fffe::1", &forged, "2001:db8:fffe::1");
    counts(&trusting(), "::ffff:11.0.0.1", &forged, "11.0.0.1");
    #[rustfmt::skip]
    let readers = [
        client(), none.clone(), none.hops(1), trusting(), trusting().forwarded(), trusting().hops(1), trusting().header("x-real-ip"),
        trusting().trusted_proxies(["192.0.2.0/32"]),
        // A limiter isn't built of these; without one they trust no proxy.
        client().header("x-real-ip"), client().hops(1).header("x-real-ip"),
    ];
    for read in readers {
        counts(&read, "192.0.2.1", &forged, "192.0.2.1");
    }
    let named_as_ipv6 = client().trusted_proxies(["::ffff:10.0.0.0/104"]);
    for (extractor, peer) in [
        (trusting(), "10.0.0.1"),
        (trusting(), "::ffff:10.0.0.1"),
        (named_as_ipv6, "10.0.0.1"),
        (trusting(), "2001:db8:ffff::7"),
    ] {
        counts(&extractor, peer, &forged, "198.51.100.9");
    }
}

#[test]
fn an_ipv4_client_is_one_client_in_every_form_that_ipv6_has_of_it() {
    let one = ip("192.0.2.1");
    let forms = [
        "::ffff:192.0.2.1",
        "::ffff:0:192.0.2.1",
        "64:ff9b::c000:201",
        "2002:c000:201:1::1",
        "2002:c000:201:2::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdfe",
    ];
    let listed = AddressList::new(["192.0.2.1"]).expect("a list");
    let by_form = AddressList::new(["64:ff9b::c000:201"]).expect("a list");
    let proxy = extract::client_ip().trusted_proxies(["192.0.2.1"]);
    for form in forms {
        assert_eq!(ip(form), one, "{form}");
        assert!(listed.contains(form.parse().expect(form)), "{form}");
        assert!(by_form.contains(form.parse().expect(form)), "{form}");
        counts(&proxy, form, &[(XFF, "198.51.100.9")], "198.51.100.9");
        let head = head_of("10.0.0.1", &[(XFF, form)]);
        assert_eq!(trusting().extract(&head).key(), Some(one), "{form}");
    }
    let v4 = "192.0.2.1".parse().expect("an address");
    assert!(by_form.contains(v4));
    // All of IPv6 is denied in whatever form a client comes.
    let all = AddressList::new(["::/0"]).expect("a list");
    assert!(all.contains("64:ff9b::c000:201".parse().expect("an address")));
    assert!(!all.contains(v4));

    // Another client of the same translator; an own translator, if it is named.
    assert_ne!(ip("64:ff9b::c633:6401"), one);
    let [own, other] = ["64:ff9b:1::c000:201", "64:ff9b:1::c000:202"];
    assert_eq!(ip(own), ip(other));
    let named = extract::client_ip().nat64("64:ff9b:1::/96");
    counts(&named, own, &[], "192.0.2.1");
    counts(&named, other, &[], "192.0.2.2");
    let denied = AddressList::new(["192.0.2.1"]).expect("a list");
    let denied = denied.client_ip(named.clone());
    assert!(denied.contains(own.parse().expect(own)));
    let inner = trusting().nat64("64:ff9b:1::/96");
    counts(&inner, "64:ff9b:1::a00:1", &[(XFF, own)], "192.0.2.1");
    let wrong = extract::peer().nat64("64:ff9b:1::/95").validate();
    assert!(wrong.is_err(), "{wrong:?}");

    // A client can't pass for a host of our networks; hosts of a link are not one subscriber.
    counts(
        &trusting(),
        "64:ff9b::10.0.0.1",
        &[(XFF, "198.51.100.9")],
        "64:ff9b::a00:1",
    );
    counts(
        &trusting(),
        "2002:a00:1::1",
        &[(XFF, "198.51.100.9")],
        "2002:a00:1::1",
    );
    assert_ne!(ip("fe80::1"), ip("fe80::2"));
    counts(&trusting(), "10.0.0.1", &[(XFF, "fe80::1%eth0")], "fe80::1");
    counts(
        &trusting(),
        "10.0.0.1",
        &[(XFF, "[fe80::1%25eth0]:80")],
        "fe80::1",
    );
}

#[test]
fn of_several_headers_of_one_address_the_first_that_is_there_is_read() {
    let by = trusting()
        .header("cf-connecting-ipv6")
        .header("cf-connecting-ip");
    let [v4, v6] = [
        ("cf-connecting-ip", "240.16.0.1"),
        ("cf-connecting-ipv6", "2001:db8::7"),
    ];
    counts(&by, "10.0.0.1", &[v4, v6], "2001:db8::7");
    counts(&by, "10.0.0.1", &[v4], "240.16.0.1");
    counts(&by, "10.0.0.1", &[(v6.0, " "), v4], "240.16.0.1");
    counts(&by, "10.0.0.1", &[], "10.0.0.1");
    // Of an unreadable one it is not known whose the next is.
    counts(&by, "10.0.0.1", &[v4, (v6.0, "unknown")], "10.0.0.1");
    counts(&by, "192.0.2.1", &[v4, v6], "192.0.2.1");
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
    // It didn't pass through four proxies.
    for (hops, expected) in [
        (1, "192.0.2.7"),
        (3, "203.0.113.1"),
        (4, "10.0.0.1"),
        (64, "10.0.0.1"),
    ] {
        counts_from_trusted(&extract::client_ip().hops(hops), XFF, list, expected);
        counts_from_trusted(&trusting().hops(hops), XFF, list, expected);
    }
    let two = || extract::client_ip().hops(2);
    let cases = [
        "for=203.0.113.1, for=198.51.100.9;by=\"a,b\", for=_hidden -> 198.51.100.9",
        "for=203.0.113.1, for=_x, for=10.0.0.2 -> 10.0.0.1",
    ];
    each_counts(&two().forwarded(), "forwarded", &cases);
    // An empty entry stands for a client, not for none.
    counts_from_trusted(&two(), XFF, "198.51.100.9,,10.0.0.2", "10.0.0.1");
    // One whose end isn't found hides whose the rest are.
    for line in [&*format!("for={}", "x".repeat(2_000)), "for=1.1.1.1\""] {
        let lines = [("forwarded", "for=198.51.100.9"), ("forwarded", line)];
        counts(&two().forwarded(), "10.0.0.1", &lines, "10.0.0.1");
    }
    // They need no peer, and so serve Unix sockets; a named proxy's peer address has to be known.
    let one = extract::client_ip().hops(1);
    let forwarded = [(XFF, "198.51.100.9")];
    counts(&one, "", &forwarded, "198.51.100.9");
    assert_eq!(one.extract(&head_of("", &[])).key(), None);
    for named in [trusting(), trusting().hops(1)] {
        assert_eq!(named.extract(&head_of("", &forwarded)).key(), None);
    }
}

#[test]
fn a_list_is_read_from_the_right_to_the_first_untrusted_address() {
    let (many, long) = ("10.0.0.9, ".repeat(6_000), "x".repeat(60_000));
    // No request passes 64 proxies: what is further left is ignored.
    let list = |n| format!("198.51.100.9{}", ", 10.0.0.9".repeat(n));
    let cases = [
        "203.0.113.1, 198.51.100.9, 10.0.0.2,10.3.4.5 -> 198.51.100.9",
        "10.0.0.9, 198.51.100.9, 10.0.0.2 -> 198.51.100.9",
        "203.0.113.1,198.51.100.9:4711 ,\t10.0.0.2:80 -> 198.51.100.9",
        "203.0.113.1, [2001:db8::9] -> 2001:db8::9",
        "203.0.113.1, [2001:db8::9]:443, [2001:db8:ffff::1]:80 -> 2001:db8::9",
        r#"203.0.113.1, "[2001:db8::9]:443" -> 2001:db8::9"#,
        r#"203.0.113.1, "198.51.100.9" -> 198.51.100.9"#,
        // IPv4 that came over IPv6 is IPv4, for proxies too.
        "203.0.113.1, ::ffff:198.51.100.9, ::ffff:10.0.0.2 -> 198.51.100.9",
        "[::ffff:198.51.100.9]:1 -> 198.51.100.9",
        // All of them are trusted: the first is the client.
        "10.0.0.9, 10.0.0.2 -> 10.0.0.9",
        &format!("{many}198.51.100.9, 10.0.0.2 -> 198.51.100.9"),
        &format!("{} -> 198.51.100.9", list(63)),
        &format!("{} -> 10.0.0.9", list(64)),
        &format!("198.51.100.9, {long} -> 10.0.0.1"),
        &format!("{long}, 198.51.100.9, 10.0.0.2 -> 198.51.100.9"),
    ];
    each_counts(&trusting(), XFF, &cases);
    // All lines are one list, in their order.
    let via = ("via", "1.1 a");
    for lines in [
        &[(XFF, "203.0.113.1"), (XFF, "198.51.100.9")][..],
        &[(XFF, "198.51.100.9"), (XFF, "10.0.0.3"), (XFF, "10.0.0.2")],
        &[(XFF, "1.1.1.1, 198.51.100.9"), via, (XFF, "10.0.0.2")],
    ] {
        counts(&trusting(), "10.0.0.1", lines, "198.51.100.9");
    }
}

#[test]
fn forwarded_is_read_as_rfc_7239_has_it() {
    let quotes = format!("for=1.1.1.1;host=\"{}", "\\\"".repeat(30_000));
    let cases = [
        // The RFC's own examples, section 4 and 6.
        "for=192.0.2.60;proto=http;by=203.0.113.43 -> 192.0.2.60",
        r#"For="[2001:db8:cafe::17]:4711" -> 2001:db8:cafe::17"#,
        r#"for="192.0.2.43:47011" -> 192.0.2.43"#,
        r#"for=192.0.2.43, for="[2001:db8:cafe::17]" -> 2001:db8:cafe::17"#,
        r#"for="_gazonk" -> 10.0.0.1"#,
        // Names in any case, in any order, and with any text in quotes.
        r#"proto=https;host="a, for=1.1.1.1";FOR=198.51.100.9 -> 198.51.100.9"#,
        r#"for=198.51.100.9;host="a;for=1.1.1.1;\"" -> 198.51.100.9"#,
        r#"for=198.51.100.9;host="\\", for=10.0.0.2 -> 198.51.100.9"#,
        r#"for=198.51.100.9;host="\\\", for=1.1.1.1" -> 198.51.100.9"#,
        r#"for="198.51.1\00.9" -> 198.51.100.9"#,
        r#"for="198.51.100.9:_port", for=10.0.0.2 -> 198.51.100.9"#,
        // As proxies write it, though it should stand in quotes.
        "for=198.51.100.9:80, for=[2001:db8:ffff::1]:80 -> 198.51.100.9",
        "for = 198.51.100.9 ; proto=https , for=10.0.0.2 -> 198.51.100.9",
        // An open quote on the left, which belongs to the entry that began it.
        r#"for=1.1.1.1;host=", for=198.51.100.9 -> 198.51.100.9"#,
        r#"for=1.1.1.1;host="\, for=198.51.100.9, for=10.0.0.2 -> 198.51.100.9"#,
        r#"for="1.1.1.1, for="198.51.100.9" -> 198.51.100.9"#,
        &format!("{quotes}, for=198.51.100.9 -> 198.51.100.9"),
        &format!("{quotes} -> 10.0.0.1"),
    ];
    each_counts(&trusting().forwarded(), "Forwarded", &cases);
}

#[test]
fn reading_stops_at_an_entry_without_a_valid_address() {
    #[rustfmt::skip]
    let no_addresses = [
        "unknown", "_hidden", "", " ", "localhost", "999.1.1.1", "010.0.0.3", "10.0.0", "10.0.0.3:", "10.0.0.3:x",
        "10.0.0.3:123456", "[10.0.0.3]", "[2001:db8:ffff::1", "2001:db8:ffff::1]", "[2001:db8:ffff::1]80",
        "[2001:db8:ffff::1]:", "fe80::1%", "10.0.0.3%eth0", "\"10.0.0.3", "10.0.0.3\"", "\"", "\"\"", "10.0.0.3 10.0.0.4", "for=10.0.0.3",
        "10.0.0.0/8", "\u{e9}", "0x0a000003",
    ];
    for no_address in no_addresses {
        let list = format!("198.51.100.9, {no_address}, 10.0.0.2");
        counts_from_trusted(&trusting(), XFF, &list, "10.0.0.2");
        let list = format!("198.51.100.9, 203.0.113.1, {no_address}");
        counts_from_trusted(&trusting(), XFF, &list, "10.0.0.1");
    }
    // In a line of its own too.
    let lines = [(XFF, "198.51.100.9"), (XFF, ""), (XFF, "10.0.0.2")];
    counts(&trusting(), "10.0.0.1", &lines, "10.0.0.2");
    #[rustfmt::skip]
    let no_addresses = [
        "", "for", "for=", "proto=https", "for=_hidden", "for=unknown", "for=\"10.0.0.3", "for=10.0.0.3;for=10.0.0.4",
        "for=10.0.0.3;For=10.0.0.3", "for=\"10.0.0.3\" x", "xfor=10.0.0.3", "for=\"10.0\\\".0.3\"", "for=\"10.0.0.3\\\"", "10.0.0.3",
        "for=\"a\"b\"", "for=\"10.\"0\".0.3\"", "for=10.0.0.3:_", "for=10.0.0.3:_%",
    ];
    for no_address in no_addresses {
        let list = format!("for=198.51.100.9, {no_address}, for=10.0.0.2");
        counts_from_trusted(&trusting().forwarded(), "forwarded", &list, "10.0.0.2");
    }
}

#[test]
fn a_header_of_one_address_is_believed_from_a_trusted_peer() {
    for name in ["CF-Connecting-IP", "X-Real-IP"] {
        let extractor = trusting().header(name);
        let cases = [
            "198.51.100.9 -> 198.51.100.9",
            " 2001:db8::9 -> 2001:db8::9",
            "[2001:db8::9]:80 -> 2001:db8::9",
            "::ffff:198.51.100.9 -> 198.51.100.9",
            " -> 10.0.0.1",
            "unknown -> 10.0.0.1",
            "198.51.100.9, 203.0.113.1 -> 10.0.0.1",
        ];
        each_counts(&extractor, name, &cases);
        let twice = [(name, "198.51.100.9"), (name, "203.0.113.1")];
        counts(&extractor, "10.0.0.1", &twice, "10.0.0.1");
    }
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
        (trusts("::ffff:0:0/96"), "/96", "own networks"),
        (trusts("10.0.0.1:80"), "10.0.0.1:80", "CIDR such as"),
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
