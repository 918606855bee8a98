//! What must hold whatever a client sends. Property tests and fuzz targets share it, so it depends on neither.

use std::{
    net::{IpAddr, SocketAddr},
    sync::LazyLock,
};

use http::{HeaderName, HeaderValue, Request, request::Parts};
use tollgate::{
    Key, KeyExtractor, Limiter, Policy, Quota,
    extract::{self, ClientIp, PeerAddr},
};

/// Header lines as a client sends them.
pub(crate) type Lines = Vec<(HeaderName, HeaderValue)>;

/// The headers that proxies write, and so those that are forged.
#[rustfmt::skip]
pub(crate) const FORGED: [&str; 7] = [
    "x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip", "fly-client-ip", "x-forwarded-host",
];

/// Networks of our own proxies.
const TRUSTED: [&str; 2] = ["10.0.0.0/8", "2001:db8:ffff::/48"];

pub(crate) fn is_trusted(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.segments()[..3] == [0x2001, 0xdb8, 0xffff],
    }
}

/// How a proxy adds to the list that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adds {
    ALineOfItsOwn,
    ToTheLastLine,
    /// All lines become one.
    ToAll,
}

/// Extractors that trust our own proxies, behind `hops` of them: one to three.
fn trusting(hops: usize) -> &'static [(&'static str, ClientIp)] {
    static TRUSTING: LazyLock<[Vec<(&str, ClientIp)>; 3]> = LazyLock::new(|| {
        [1, 2, 3].map(|hops| {
            let trusting = || extract::client_ip().trusted_proxies(TRUSTED);
            let lists = [
                ("X-Forwarded-For", trusting()),
                ("X-Forwarded-For, by hops", trusting().hops(hops)),
                ("Forwarded", trusting().forwarded()),
                ("Forwarded, by hops", trusting().forwarded().hops(hops)),
            ];
            let single = FORGED[2..].iter();
            let single = single.map(|name| (*name, trusting().header(name)));
            lists.into_iter().chain(single).collect()
        })
    });
    &TRUSTING[hops - 1]
}

/// A request's head.
fn head(peer: IpAddr, lines: &Lines) -> Parts {
    let (mut head, ()) = Request::new(()).into_parts();
    head.extensions
        .insert(PeerAddr(SocketAddr::new(peer, 1234)));
    for (name, value) in lines {
        head.headers.append(name.clone(), value.clone());
    }
    head
}

/// Nothing that a client sends changes by what it is counted, unless it is a proxy of ours.
pub(crate) fn no_client_chooses_its_key(peer: IpAddr, lines: &Lines) {
    assert!(!is_trusted(peer), "{peer}");
    let head = head(peer, lines);
    let known = ("no proxy is trusted", extract::client_ip());
    for (name, extractor) in trusting(1).iter().chain([&known]) {
        let key = extractor.extract(&head).key();
        assert_eq!(key, Some(Key::ip(peer)), "{name}: {head:?}");
    }
    assert_eq!(extract::peer().extract(&head).key(), Some(Key::ip(peer)));
}

/// A client behind our own proxies is counted by its address, whatever it sends. `proxies` are their addresses, outermost
/// first.
pub(crate) fn a_client_behind_proxies_is_itself(
    client: IpAddr,
    proxies: &[IpAddr],
    adds: Adds,
    lines: &Lines,
) {
    assert!(!is_trusted(client) && proxies.iter().all(|proxy| is_trusted(*proxy)));
    let Some((server_sees, _)) = proxies.split_last() else {
        return;
    };
    let mut passed = lines.clone();
    // Headers of one address are replaced by the outermost.
    passed.retain(|(name, _)| !FORGED[2..].contains(&name.as_str()));
    for name in &FORGED[2..] {
        passed.push((HeaderName::from_static(name), value(client.to_string())));
    }
    let mut saw = client;
    for proxy in proxies {
        // The request target, in quotes: hostile text stays within them.
        let sent: String = lines
            .iter()
            .map(|(_, value)| quoted(value))
            .take(3)
            .collect();
        let node = match saw {
            IpAddr::V4(_) => format!("for={saw}"),
            IpAddr::V6(_) => format!("proto=https;For=\"[{saw}]:4711\""),
        };
        add(&mut passed, "x-forwarded-for", &saw.to_string(), adds);
        let element = format!("{node};host=\"{sent}\"");
        add(&mut passed, "forwarded", &element, adds);
        saw = *proxy;
    }
    let head = head(*server_sees, &passed);
    for (name, extractor) in trusting(proxies.len()) {
        let address = extractor.address(&head);
        assert_eq!(address, Some(client.to_canonical()), "{name}: {head:?}");
        let key = extractor.extract(&head).key();
        assert_eq!(key, Some(Key::ip(client)), "{name}: {head:?}");
    }
    // Nor does it matter where the proxies are, if they are all there is.
    let by_hops = extract::client_ip().hops(proxies.len());
    let key = by_hops.extract(&head).key();
    assert_eq!(key, Some(Key::ip(client)), "hops: {head:?}");
}

/// No extractor fails on what a request may be, wherever it is from.
pub(crate) fn nothing_panics(peer: IpAddr, uri: &str, lines: &Lines) {
    let mut head = head(peer, lines);
    head.uri = uri.parse().unwrap_or_default();
    for (_, extractor) in trusting(1).iter().chain(trusting(3)) {
        // An address is counted: the peer at least.
        assert!(extractor.extract(&head).key().is_some(), "{head:?}");
    }
    let others: [&dyn KeyExtractor; 9] = [
        &extract::cookie("session"),
        &extract::query("key"),
        &extract::host(),
        &extract::grpc_service(),
        &extract::grpc_method(),
        &extract::bearer(),
        &extract::header("x-api-key"),
        &extract::client_ip().hops(2).forwarded(),
        &(extract::host(), extract::query("key")).or_else(extract::path()),
    ];
    for extractor in others {
        extractor.extract(&head).key();
    }
}

/// Text either is no quota, or one that displays itself and parses back; and a limiter is built of it, or the error
/// names the reason.
pub(crate) fn a_quota_reads_back_or_is_none(text: &str) {
    let Ok(quota) = text.parse::<Quota>() else {
        return;
    };
    assert_eq!(quota.to_string().parse(), Ok(quota), "{text:?}");
    let built = Limiter::builder().policy(Policy::new("p", quota)).build();
    if let Err(error) = built {
        assert!(!error.expected().is_empty(), "{text:?}");
    }
}

fn add(lines: &mut Lines, name: &'static str, entry: &str, adds: Adds) {
    let name = HeaderName::from_static(name);
    let found = lines.iter().filter(|line| line.0 == name).count();
    let mut stay = match adds {
        Adds::ALineOfItsOwn => found,
        Adds::ToTheLastLine => found.saturating_sub(1),
        Adds::ToAll => 0,
    };
    let mut list = Vec::new();
    lines.retain(|line| {
        if line.0 != name {
            return true;
        }
        if let Some(fewer) = stay.checked_sub(1) {
            stay = fewer;
            return true;
        }
        list.extend_from_slice(line.1.as_bytes());
        list.extend_from_slice(b", ");
        false
    });
    list.extend_from_slice(entry.as_bytes());
    lines.push((name, value(list)));
}

fn quoted(text: &HeaderValue) -> String {
    let printable = text
        .as_bytes()
        .iter()
        .filter(|byte| (b' '..=b'~').contains(byte));
    let escaped = printable.take(60).flat_map(|byte| match byte {
        b'"' | b'\\' => vec!['\\', char::from(*byte)],
        byte => vec![char::from(*byte)],
    });
    escaped.collect()
}

fn value(text: impl AsRef<[u8]>) -> HeaderValue {
    HeaderValue::from_bytes(text.as_ref()).expect("a header's value")
}
