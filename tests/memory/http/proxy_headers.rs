//! What proxies write: lists of every shape, well-formed and not, and headers of one address.

use tollgate::extract::ClientIp;

use crate::http::{
    client_address::{XFF, counts, counts_from_trusted, trusting},
    support::*,
};

/// Asserts by which address a request from a trusted proxy is counted, for each of these: `list -> address`.
fn each_counts(extractor: &ClientIp, name: &str, cases: &[impl AsRef<str>]) {
    for case in cases {
        let case = case.as_ref();
        let (list, expected) = case.split_once(" -> ").expect(case);
        counts_from_trusted(extractor, name, list, expected);
    }
}

#[test]
fn a_list_is_read_from_the_right_to_the_first_untrusted_address() {
    let cases = [
        "198.51.100.9 -> 198.51.100.9",
        "203.0.113.1, 198.51.100.9 -> 198.51.100.9",
        "203.0.113.1, 198.51.100.9, 10.0.0.2,10.3.4.5 -> 198.51.100.9",
        "10.0.0.9, 198.51.100.9, 10.0.0.2 -> 198.51.100.9",
        "203.0.113.1,198.51.100.9:4711 ,\t10.0.0.2:80 -> 198.51.100.9",
        "203.0.113.1, 2001:db8::9 -> 2001:db8::9",
        "203.0.113.1, [2001:db8::9] -> 2001:db8::9",
        "203.0.113.1, [2001:db8::9]:443, [2001:db8:ffff::1]:80 -> 2001:db8::9",
        r#"203.0.113.1, "[2001:db8::9]:443" -> 2001:db8::9"#,
        r#"203.0.113.1, "198.51.100.9" -> 198.51.100.9"#,
        // IPv4 that came over IPv6 is IPv4, for proxies too.
        "203.0.113.1, ::ffff:198.51.100.9, ::ffff:10.0.0.2 -> 198.51.100.9",
        "[::ffff:198.51.100.9]:1 -> 198.51.100.9",
        // All of them are trusted: the first is the client.
        "10.0.0.9, 10.0.0.2 -> 10.0.0.9",
    ];
    each_counts(&trusting(), XFF, &cases);
}

#[test]
fn all_header_lines_are_one_list_in_their_order() {
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
fn reading_stops_at_an_invalid_address() {
    #[rustfmt::skip]
    let no_addresses = [
        "unknown", "_hidden", "", " ", "localhost", "999.1.1.1", "010.0.0.3", "10.0.0", "10.0.0.3:", "10.0.0.3:x",
        "10.0.0.3:123456", "[10.0.0.3]", "[2001:db8:ffff::1", "2001:db8:ffff::1]", "[2001:db8:ffff::1]80",
        "[2001:db8:ffff::1]:", "fe80::1%eth0", "\"10.0.0.3", "10.0.0.3\"", "\"", "\"\"", "10.0.0.3 10.0.0.4", "for=10.0.0.3",
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
}

#[test]
fn a_list_of_thousands_of_entries_is_read() {
    let (many, long) = ("10.0.0.9, ".repeat(6_000), "x".repeat(60_000));
    // No request passes 64 proxies: what is further left is ignored.
    let list = |n| format!("198.51.100.9{}", ", 10.0.0.9".repeat(n));
    let cases = [
        format!("{many}198.51.100.9, 10.0.0.2 -> 198.51.100.9"),
        format!("{} -> 198.51.100.9", list(63)),
        format!("{} -> 10.0.0.9", list(64)),
        format!("198.51.100.9, {long} -> 10.0.0.1"),
        format!("{long}, 198.51.100.9, 10.0.0.2 -> 198.51.100.9"),
    ];
    each_counts(&trusting(), XFF, &cases);
    let quotes = format!("for=1.1.1.1;host=\"{}", "\\\"".repeat(30_000));
    let cases = [
        format!("{quotes}, for=198.51.100.9 -> 198.51.100.9"),
        format!("{quotes} -> 10.0.0.1"),
    ];
    each_counts(&trusting().forwarded(), "forwarded", &cases);
}

#[test]
fn forwarded_is_read_as_rfc_7239_has_it() {
    let cases = [
        // The RFC's own examples, section 4 and 6.
        "for=192.0.2.60;proto=http;by=203.0.113.43 -> 192.0.2.60",
        "for=192.0.2.43, for=198.51.100.17 -> 198.51.100.17",
        r#"For="[2001:db8:cafe::17]:4711" -> 2001:db8:cafe::17"#,
        r#"for="192.0.2.43:47011" -> 192.0.2.43"#,
        r#"for=192.0.2.43, for="[2001:db8:cafe::17]" -> 2001:db8:cafe::17"#,
        r#"for="_gazonk" -> 10.0.0.1"#,
        "for=unknown -> 10.0.0.1",
        // Names in any case, in any order, and with any text in quotes.
        r#"proto=https;host="a, for=1.1.1.1";FOR=198.51.100.9 -> 198.51.100.9"#,
        r#"for=198.51.100.9;host="a;for=1.1.1.1;\"" -> 198.51.100.9"#,
        r#"for=198.51.100.9;host="\\", for=10.0.0.2 -> 198.51.100.9"#,
        r#"for=198.51.100.9;host="\\\", for=1.1.1.1" -> 198.51.100.9"#,
        r#"for="198.51.1\00.9" -> 198.51.100.9"#,
        r#"host="a\\";for=198.51.100.9 -> 198.51.100.9"#,
        r#"for="198.51.100.9:_port", for=10.0.0.2 -> 198.51.100.9"#,
        // As proxies write it, though it should stand in quotes.
        "for=198.51.100.9:80, for=[2001:db8:ffff::1]:80 -> 198.51.100.9",
        "for = 198.51.100.9 ; proto=https , for=10.0.0.2 -> 198.51.100.9",
        // An open quote on the left, which belongs to the entry that began it.
        r#"for=1.1.1.1;host=", for=198.51.100.9 -> 198.51.100.9"#,
        r#"for=1.1.1.1;host="\, for=198.51.100.9, for=10.0.0.2 -> 198.51.100.9"#,
        r#"for="1.1.1.1, for="198.51.100.9" -> 198.51.100.9"#,
    ];
    each_counts(&trusting().forwarded(), "Forwarded", &cases);
}

#[test]
fn reading_stops_at_an_entry_of_forwarded_without_an_address() {
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
    let names = "CF-Connecting-IP X-Real-IP True-Client-IP Fly-Client-IP \
        X-Azure-ClientIP";
    for name in names.split(' ') {
        let extractor = trusting().header(name);
        counts_from_trusted(&extractor, name, "198.51.100.9", "198.51.100.9");
        counts_from_trusted(&extractor, name, " 2001:db8::9", "2001:db8::9");
        counts_from_trusted(&extractor, name, "[2001:db8::9]:80", "2001:db8::9");
        counts_from_trusted(&extractor, name, "::ffff:198.51.100.9", "198.51.100.9");
        for no_address in ["", "unknown", "198.51.100.9, 203.0.113.1", "x"] {
            counts_from_trusted(&extractor, name, no_address, "10.0.0.1");
        }
        let twice = [(name, "198.51.100.9"), (name, "203.0.113.1")];
        counts(&extractor, "10.0.0.1", &twice, "10.0.0.1");
        counts(&extractor, "192.0.2.1", &twice[..1], "192.0.2.1");
    }
    // A limiter isn't built of this; without one it trusts no proxy.
    for untrusting in [extract::client_ip(), extract::client_ip().hops(1)] {
        let forged = [("x-real-ip", "198.51.100.9")];
        let untrusting = untrusting.header("x-real-ip");
        counts(&untrusting, "192.0.2.1", &forged, "192.0.2.1");
    }
}
