use std::borrow::Cow;

use http::{header, request::Parts, uri::Authority};

use super::{KeyExtractor, field};
use crate::key::Key;

/// Counts each host by itself: the one that the request is for, in lower case, without a port and without the dot that
/// a full name may end in. The key is [`Key::new`].
///
/// It is the target's (`:authority` in HTTP/2) or else the `Host` header's (RFC 9112, section 3.2.2). A request with
/// none, with several `Host` headers, or with one that is no host has no key. What proxies say in `X-Forwarded-Host` or
/// `Forwarded` is not read.
///
/// Clients choose it freely, unless the server or a proxy answers to known hosts alone.
///
/// ```
/// use tollgate::{Policy, Quota, extract};
///
/// // Each client at each of the hosts that are served.
/// let policy = Policy::new("burst", Quota::requests(10).per_second())
///     .key((extract::host(), extract::peer()));
/// ```
pub fn host() -> Host {
    Host
}

/// See [`host`].
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl KeyExtractor for Host {
    fn key(&self, parts: &Parts) -> Option<Key> {
        let named = match parts.uri.authority() {
            Some(authority) => authority.clone(),
            None => {
                let mut lines = parts.headers.get_all(header::HOST).into_iter();
                let line = lines.next()?.as_bytes();
                let lone = lines.next().is_none();
                lone.then(|| authority(line))??
            }
        };
        key_of(&named)
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        key_of(&authority(field::text(texts)?.as_bytes())?)
    }

    fn missing_key_name(&self, _parts: Option<&Parts>) -> Cow<'static, str> {
        "a host (Host header)".into()
    }
}

/// The authority that a `Host` header names.
fn authority(line: &[u8]) -> Option<Authority> {
    // Users stand in URIs alone (RFC 9110, section 4.2.4).
    let fits = !line.contains(&b'@');
    fits.then(|| Authority::try_from(line).ok())?
}

fn key_of(authority: &Authority) -> Option<Key> {
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| Key::new(host.to_ascii_lowercase()))
}
