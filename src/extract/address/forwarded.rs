//! The client's address in what proxies add: `X-Forwarded-For`, `Forwarded` (RFC 7239), and headers of one address.
//!
//! A proxy adds to the right of a list, so it is read from right to left: nothing that a client wrote further left, such as an
//! open quote, changes how the proxies' entries are read.

use std::{
    mem,
    net::{IpAddr, Ipv4Addr},
    str,
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use smallvec::SmallVec;

use crate::address;

/// The most entries of a list that are read. A request passes few proxies; a header of thousands of entries is an attack.
pub(crate) const MAX_ENTRIES: usize = 64;

/// The most bytes of an entry: one of `Forwarded` may have a host name, an address is much shorter.
const MAX_ENTRY_LEN: usize = 1024;

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The syntax of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    XForwardedFor,
    Forwarded,
}

impl List {
    /// The clients that the entries of all lines name, the last first; `None` for an entry that names none.
    pub(crate) fn rev_addresses(
        self,
        headers: &HeaderMap,
    ) -> impl Iterator<Item = Option<IpAddr>> + '_ {
        let name = match self {
            Self::XForwardedFor => X_FORWARDED_FOR,
            Self::Forwarded => header::FORWARDED,
        };
        let lines = headers.get_all(name).into_iter().rev();
        let entries = lines.flat_map(move |line| RevEntries {
            rest: Some(line.as_bytes()),
            quotes: self == Self::Forwarded,
        });
        let address = match self {
            Self::XForwardedFor => unquoted,
            Self::Forwarded => forwarded_for,
        };
        let mut readable = true;
        entries.take(MAX_ENTRIES).map_while(move |entry| {
            // Left of an entry without a beginning it is unknown which proxy wrote the rest.
            let goes_on = mem::replace(&mut readable, entry.is_some());
            goes_on.then(|| address(entry?))
        })
    }
}

/// The address in a header that holds one; `None` if there is none in it, or several lines of it.
pub(crate) fn single_address(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).into_iter();
    let line = lines.next().map(HeaderValue::as_bytes)?;
    // A second line has another origin, and it is unknown which one is the proxy's.
    lines.next().is_none().then(|| unquoted(line))?
}

/// The entries of a line, the last first; then `None` if an entry is too long, or a quoted string has no beginning.
struct RevEntries<'a> {
    rest: Option<&'a [u8]>,
    quotes: bool,
}

impl<'a> Iterator for RevEntries<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.rest.take()?;
        let (mut at, mut quoted) = (line.len(), false);
        while let Some(&byte) = at.checked_sub(1).and_then(|before| line.get(before)) {
            at -= 1;
            if line.len() - at > MAX_ENTRY_LEN {
                return Some(None);
            }
            match byte {
                b'"' if self.quotes => quoted = !quoted || is_escaped(&line[..at]),
                b',' if !quoted => {
                    self.rest = Some(&line[..at]);
                    return Some(Some(&line[at + 1..]));
                }
                _ => {}
            }
        }
        Some((!quoted).then_some(line))
    }
}

/// Whether a quote in a quoted string is escaped, by an odd number of backslashes before it.
fn is_escaped(before: &[u8]) -> bool {
    let backslashes = before.iter().rev().take(MAX_ENTRY_LEN);
    backslashes.take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The client of an entry of `Forwarded`: `for="[2001:db8::1]:4711";proto=https`.
fn forwarded_for(entry: &[u8]) -> Option<IpAddr> {
    let (mut quoted, mut escaped) = (false, false);
    let mut pairs = entry.split(|&byte| {
        let ends = byte == b';' && !quoted;
        quoted ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && quoted && !escaped;
        ends
    });
    let mut node_of = || {
        pairs.find_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            let (name, value) = pair.split_at(equals);
            let is_for = name.trim_ascii().eq_ignore_ascii_case(b"for");
            is_for.then_some(&value[1..])
        })
    };
    let node = node_of()?;
    // Each parameter at most once (RFC 7239, section 4): of two, it is unknown which one is the proxy's.
    node_of().is_none().then(|| unquoted(node))?
}

/// The address in a node that may be a quoted string.
fn unquoted(value: &[u8]) -> Option<IpAddr> {
    let value = value.trim_ascii();
    let Some(quoted) = value.strip_prefix(b"\"") else {
        return node(value);
    };
    let mut text = SmallVec::<[u8; 64]>::new();
    let mut bytes = quoted.strip_suffix(b"\"")?.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return None,
            b'\\' => text.push(*bytes.next()?),
            byte => text.push(*byte),
        }
    }
    node(&text)
}

/// The address of a node: `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]`, `[2001:db8::1]:80`; also `2001:db8::1`, which
/// proxies write in `X-Forwarded-For`. `unknown` and obfuscated names (`_hidden`) have none.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']')?;
        let address = address::parse(address).filter(IpAddr::is_ipv6)?;
        let fits = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return fits.then(|| address.to_canonical());
    }
    if let Some(address) = address::parse(text) {
        return Some(address.to_canonical());
    }
    let (address, port) = text.split_once(':')?;
    let address: Ipv4Addr = address.parse().ok()?;
    is_port(port).then_some(IpAddr::V4(address))
}

/// A port of RFC 7239, section 6: of up to five digits, or obfuscated.
fn is_port(port: &str) -> bool {
    let obfuscated = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        !name.is_empty() && name.bytes().all(fits)
    };
    let digits = matches!(port.len(), 1..=5) && port.bytes().all(|byte| byte.is_ascii_digit());
    digits || port.strip_prefix('_').is_some_and(obfuscated)
}
