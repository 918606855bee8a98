use std::borrow::Cow;

use http::{header, request::Parts, uri::Authority};

use super::{Extracted, KeyExtractor, field};
use crate::key::Key;

/// Counts each requested host separately, in lower case, without a port and without a final dot. The key is [`Key::new`].
///
/// The host is that of the request target (`:authority` in HTTP/2) or of the `Host` header. A request without a host, or with an
/// invalid one, has no key. One whose target and `Host` headers name different hosts is [ambiguous](Extracted::Ambiguous), since
/// frameworks differ in which of them they read; clients may not send it (RFC 9112, section 3.2.2; RFC 9113, section 8.3.1).
/// `X-Forwarded-Host` and `Forwarded` are not read.
///
/// Clients choose it freely, unless the server or a proxy accepts known hosts only.
///
/// ```
/// use tollgate::{Key, KeyExtractor, Policy, Quota, extract};
///
/// let request = http::Request::get("/").header("host", "Shop.Example:8080").body(()).unwrap();
/// let found = extract::host().extract(&request.into_parts().0);
/// assert_eq!(found.key(), Some(Key::new("shop.example")));
/// // Each client at each host.
/// let policy = Policy::new("burst", Quota::requests(10).per_second())
///     .key((extract::host(), extract::peer()));
/// ```
pub fn host() -> Host {
    Host
}

/// The extractor of the host, from [`host`].
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl KeyExtractor for Host {
    fn extract(&self, parts: &Parts) -> Extracted {
        let lines = parts.headers.get_all(header::HOST).into_iter();
        let lines = lines.map(|line| key_of(&authority(line.as_bytes().trim_ascii())?));
        let hosts = parts.uri.authority().map(key_of).into_iter().chain(lines);
        field::extract("the header", "Host", hosts, |host| host)
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        key_of(&authority(field::text(texts)?.as_bytes())?)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("host".into())
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        match parts.map(|parts| self.extract(parts)) {
            Some(Extracted::Ambiguous) => "a single host (request target and Host header)".into(),
            _ => "a host (Host header)".into(),
        }
    }
}

/// The authority that a `Host` header names.
fn authority(line: &[u8]) -> Option<Authority> {
    // A `Host` header has no user information (RFC 9110, section 7.2).
    let is_host = !line.contains(&b'@');
    is_host.then(|| Authority::try_from(line).ok())?
}

fn key_of(authority: &Authority) -> Option<Key> {
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| Key::new(host.to_ascii_lowercase()))
}
