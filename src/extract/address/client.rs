use std::{borrow::Cow, net::IpAddr, sync::Arc};

use http::{HeaderName, header, request::Parts};

use super::{
    forwarded::{self, List, MAX_ENTRIES, X_FORWARDED_FOR},
    networks::Networks,
    peer::{peer, peer_of},
};
use crate::{
    address::{self, is_private},
    error::InvalidValue,
    extract::{Extracted, KeyExtractor, MissingKey, Peer, field, text},
    key::Key,
    log::LogThrottle,
};

/// Counts by the client's address, also behind trusted proxies. An IPv6 address counts by its /64, and an IPv4 address within an
/// IPv6 one as IPv4. The key is [`Key::ip`], or [`Key::network`] with other prefixes.
///
/// Unless [`trusted_proxies`](ClientIp::trusted_proxies) or [`hops`](ClientIp::hops) is set, it is the
/// [`peer`](crate::extract::peer)'s address: no header is read.
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
/// use tollgate::{Policy, Quota, extract::{self, PeerAddr}};
///
/// let by_client = extract::client_ip().trusted_proxies(["10.0.0.0/8", "2001:db8:ffff::/48"]);
/// let policy = Policy::new("burst", Quota::requests(10).per_second()).key(by_client.clone());
///
/// let address = |peer: &str, list: &str| {
///     let peer: SocketAddr = peer.parse().unwrap();
///     let request = http::Request::get("/").extension(PeerAddr(peer));
///     let request = request.header("x-forwarded-for", list).body(()).unwrap();
///     by_client.address(&request.into_parts().0).unwrap().to_string()
/// };
/// // Two proxies, each of which added the address that it saw to what the client made up.
/// assert_eq!(address("10.0.0.1:80", "203.0.113.9, 198.51.100.7, 10.0.0.2"), "198.51.100.7");
/// // A peer that is no proxy is the client.
/// assert_eq!(address("192.0.2.1:80", "203.0.113.9"), "192.0.2.1");
/// ```
///
/// # What is trusted
///
/// | the socket's peer | the header | counts by |
/// |---|---|---|
/// | isn't a trusted proxy | whatever it says | the peer |
/// | is one | is missing, or says nothing that can be read | the peer, so the proxy |
/// | is one | its last entries are trusted proxies too | the last address that is none |
/// | is one | all its entries are trusted proxies | the first of them |
/// | is one | an entry that is no address follows a trusted proxy's, right to left | that proxy |
///
/// A list is read from right to left, all its fields as one (RFC 9110, section 5.3), up to the first address that is no trusted
/// proxy's: the client may have made up the entries further left. Reading also stops at an entry that is empty, no address,
/// `unknown` or obfuscated (RFC 7239, section 6.3), since the origin of the entries before it is unknown. Clients that are
/// counted by a proxy's address share its bucket. At most 64 entries of at most 1,024 bytes each are read; further ones are
/// ignored.
///
/// # What proxies must do
///
/// Trust only proxies that add to the header that is read, or replace it. A proxy that forwards the header unchanged lets
/// clients choose their address; for the same reason no second header is read, and the networks of clients must not be trusted.
///
/// # What is logged
///
/// An unknown peer is logged as an error: see [`peer`](crate::extract::peer). A request from a private address that isn't
/// trusted, with a header that proxies add, is logged as a warning, at most every 10 s: probably a proxy is not configured, and
/// all its clients share one bucket. A trusted proxy's request without a client's address, such as a health check, is logged at
/// level `debug`.
pub fn client_ip() -> ClientIp {
    ClientIp {
        prefixes: peer(),
        proxies: None,
        hops: None,
        source: None,
        untrusted_log: Arc::default(),
    }
}

/// The extractor of the client's address, from [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    prefixes: Peer,
    /// The trusted proxies, if any were named.
    proxies: Option<Networks>,
    hops: Option<usize>,
    source: Option<Source>,
    untrusted_log: Arc<LogThrottle>,
}

/// The header in which proxies name their client.
#[derive(Clone, Debug)]
enum Source {
    List(List),
    /// Headers of one address, of which the first that a request has is read; `Err` for a name that no header can have.
    One(Vec<Result<HeaderName, String>>),
}

impl ClientIp {
    /// Adds trusted proxies: networks (`"10.0.0.0/8"`) or single addresses, as text or as types that are displayed so. Without
    /// any, no header is read.
    ///
    /// An invalid entry, or a network of all addresses, is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    #[must_use]
    pub fn trusted_proxies(mut self, proxies: impl IntoIterator<Item = impl ToString>) -> Self {
        let trusted = self.proxies.get_or_insert_default();
        for proxy in proxies {
            trusted.add(&proxy.to_string());
        }
        self
    }

    /// Counts by the `n`th address from the right of the list, which is the address that the outermost of `n` proxies saw. For
    /// proxies whose addresses aren't known, and for servers on Unix sockets.
    ///
    /// Without [`trusted_proxies`](ClientIp::trusted_proxies) every peer is trusted, so only the proxies may be able to reach
    /// the server. If the list is shorter, or its `n`th entry is no address, the request did not pass all the proxies, and is
    /// counted by its peer.
    ///
    /// `n` must be from 1 to 64, and can't be combined with a [header of one address](ClientIp::header); else the limiter's
    /// build returns a [`ConfigError`](crate::ConfigError).
    #[must_use]
    pub fn hops(mut self, n: usize) -> Self {
        self.hops = Some(n);
        self
    }

    /// Reads `Forwarded` (RFC 7239), in place of `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.source = Some(Source::List(List::Forwarded));
        self
    }

    /// Reads a header that holds only the client's address, in place of `X-Forwarded-For`: `CF-Connecting-IP`, `X-Real-IP`,
    /// `True-Client-IP`, `Fly-Client-IP` or another. It is read only from [trusted peers](ClientIp::trusted_proxies), and
    /// ignored if it is given more than once. Of several, the first that a request has, and that is not empty, is read: Cloudflare's Pseudo IPv4 needs
    /// `.header("CF-Connecting-IPv6").header("CF-Connecting-IP")`.
    ///
    /// An invalid name, and the name of a list (`X-Forwarded-For`, `Forwarded`), is a [`ConfigError`](crate::ConfigError) when
    /// the limiter is built.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        let name = HeaderName::try_from(name).map_err(|_| name.to_owned());
        match &mut self.source {
            Some(Source::One(names)) => names.push(name),
            source => *source = Some(Source::One(vec![name])),
        }
        self
    }

    /// Sets the prefix of the network's own NAT64: see [`Peer::nat64`].
    #[must_use]
    pub fn nat64(mut self, prefix: impl ToString) -> Self {
        self.prefixes = self.prefixes.nat64(prefix);
        self
    }

    /// Counts IPv6 addresses by their first `bits`. Default: 64; more than 128 is a [`ConfigError`](crate::ConfigError) when
    /// the limiter is built.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.prefixes = self.prefixes.ipv6_prefix(bits);
        self
    }

    /// Counts IPv4 addresses by their first `bits`. Default: 32; more is a [`ConfigError`](crate::ConfigError) when the limiter
    /// is built.
    #[must_use]
    pub fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.prefixes = self.prefixes.ipv4_prefix(bits);
        self
    }

    /// Returns the client's full address; `None` if even the peer is unknown. For logs, and for handlers that show it.
    pub fn address(&self, parts: &Parts) -> Option<IpAddr> {
        let peer = peer_of(&parts.extensions);
        let peer = peer.map(|peer| self.translated(peer));
        if !self.is_trusted(peer) {
            if let Some(peer) = peer.filter(|peer| is_private(*peer)) {
                self.warn_if_forwarded(peer, parts);
            }
            return peer;
        }
        let client = self.forwarded_client(parts);
        if client.is_none() {
            static UNNAMED: LogThrottle = LogThrottle::new();
            UNNAMED.log_with(|suppressed| {
                tracing::debug!(
                    ?peer,
                    suppressed,
                    "a trusted proxy names no client; the proxy's own address is counted"
                );
            });
        }
        client.or(peer)
    }

    /// Warns of a request from a private address that isn't trusted, if it has a header that a proxy would add.
    fn warn_if_forwarded(&self, peer: IpAddr, parts: &Parts) {
        const LISTS: [HeaderName; 2] = [X_FORWARDED_FOR, header::FORWARDED];
        let lists = &LISTS;
        let mut names = lists.iter().chain(self.single_headers());
        let Some(header) = names.find(|name| parts.headers.contains_key(*name)) else {
            return;
        };
        self.untrusted_log.log_with(|suppressed| {
            tracing::warn!(
                %peer,
                %header,
                suppressed,
                "a request from a private address that is not a trusted proxy has a header that proxies add: probably it \
                 is a proxy, and all of its clients share one bucket; if so, add it: \
                 `extract::client_ip().trusted_proxies([..])`"
            );
        });
    }

    /// The address of a client, where the network's NAT64 has translated it.
    pub(crate) fn translated(&self, address: IpAddr) -> IpAddr {
        self.prefixes.translated(address)
    }

    /// The headers of one address.
    fn single_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let names = match &self.source {
            Some(Source::One(names)) => &names[..],
            Some(Source::List(_)) | None => &[],
        };
        names.iter().flatten()
    }

    /// Whether the header of a request from this peer is read.
    fn is_trusted(&self, peer: Option<IpAddr>) -> bool {
        match (&self.proxies, &self.source) {
            (Some(proxies), _) => peer.is_some_and(|peer| proxies.contain(peer)),
            (None, Some(Source::One(_))) => false,
            (None, _) => self.hops.is_some(),
        }
    }

    /// The client that the header names, from a trusted proxy.
    fn forwarded_client(&self, parts: &Parts) -> Option<IpAddr> {
        let list = match &self.source {
            Some(Source::One(_)) => {
                // An empty one is what some proxies make of one that they lack.
                let name = self.single_headers().find(|name| {
                    let line = parts.headers.get(*name);
                    line.is_some_and(|line| !line.as_bytes().trim_ascii().is_empty())
                });
                let address = forwarded::single_address(&parts.headers, name?)?;
                return Some(self.translated(address));
            }
            Some(Source::List(list)) => *list,
            None => List::XForwardedFor,
        };
        let entries = list.rev_addresses(&parts.headers);
        let mut entries = entries.map(|entry| entry.map(|own| self.translated(own)));
        if let Some(hops) = self.hops {
            return entries.nth(hops.checked_sub(1)?)?;
        }
        let trusted = |address| {
            let proxies = self.proxies.as_ref();
            proxies.is_some_and(|proxies| proxies.contain(address))
        };
        let mut client = None;
        while let Some(Some(address)) = entries.next() {
            client = Some(address);
            if !trusted(address) {
                break;
            }
        }
        client
    }
}

/// What to do if neither the header nor the connection has an address.
const NO_ENTRY: &str = "the request has no peer address, and the list of X-Forwarded-For, or of Forwarded if that is read, \
     has no address at the position that `hops` says; let each proxy append the address that it saw, as nginx does by \
     `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for`";

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Extracted {
        let address = self.address(parts);
        address.map(|address| self.prefixes.key_of(address)).into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        Some(self.prefixes.key_of(address::parse(field::text(texts)?)?))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        self.validate().ok()?;
        let mut text = "client_ip".to_owned();
        if let Some(hops) = self.hops {
            text.push_str(&format!(" hops {hops}"));
        }
        if let Some(proxies) = &self.proxies {
            text.push_str(&format!(" trusted_proxies {}", proxies.text()));
        }
        if let Some(Source::List(List::Forwarded)) = &self.source {
            text.push_str(" forwarded");
        }
        for name in self.single_headers() {
            text.push_str(&format!(" header {}", text::quoted(name.as_str())));
        }
        text.push_str(&self.prefixes.settings_text());
        Some(text.into())
    }

    fn on_missing_key(&self) -> MissingKey {
        self.prefixes.on_missing_key()
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        self.prefixes.missing_key_name(parts)
    }

    fn missing_key_hint(&self) -> &'static str {
        match (self.hops, &self.proxies) {
            (Some(_), None) => NO_ENTRY,
            _ => self.prefixes.missing_key_hint(),
        }
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        self.prefixes.validate()?;
        self.proxies.as_ref().map_or(Ok(()), Networks::validate)?;
        if let Some(Source::One(names)) = &self.source
            && let Some(name) = names.iter().find_map(|name| name.as_ref().err())
        {
            let value = format!("a header {name:?}");
            return Err(InvalidValue::new(value, "a field name of RFC 9110"));
        }
        let mut names = self.single_headers();
        let list = names.find(|name| [&X_FORWARDED_FOR, &header::FORWARDED].contains(name));
        if let Some(list) = list {
            return Err(InvalidValue::new(
                format!("{list} as a header of one address"),
                "the list that it is: X-Forwarded-For unless `forwarded()` says otherwise",
            ));
        }
        match self.hops {
            Some(hops) if !(1..=MAX_ENTRIES).contains(&hops) => Err(InvalidValue::new(
                format!("{hops} hops"),
                format!("at least 1 and at most {MAX_ENTRIES}"),
            )),
            Some(_) if matches!(self.source, Some(Source::One(_))) => Err(InvalidValue::new(
                "hops in a header of one address",
                "trusted_proxies alone, or hops in X-Forwarded-For or Forwarded",
            )),
            None if self.source.is_some() && self.proxies.is_none() => Err(InvalidValue::new(
                "a proxy's header, but no proxy to trust",
                "trusted_proxies, or hops for a list",
            )),
            _ => Ok(()),
        }
    }
}
