use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

use http::{Extensions, request::Parts};

use crate::{
    address::{self, Nat64},
    error::InvalidValue,
    extract::{Extracted, KeyExtractor, MissingKey, field},
    key::Key,
};

/// Counts by the address of the socket's peer, which a client cannot choose. An IPv6 address counts by its /64. The key is
/// [`Key::ip`]. It is the default extractor of a policy.
///
/// The address is read from the request's extensions: [`PeerAddr`] first, then, with feature `axum`, axum 0.8's
/// `ConnectInfo<SocketAddr>` or, for tests, `MockConnectInfo<SocketAddr>`, then, with feature `tonic`, tonic's `TcpConnectInfo` and, with `tonic-tls`,
/// `TlsConnectInfo<TcpConnectInfo>`, which is the only one if a tonic server is given the application's own TLS connections.
///
/// If none of them is present, an axum server was started without `into_make_service_with_connect_info`, or is one of another
/// version of axum, whose `ConnectInfo` is another type (insert `PeerAddr`), or a tonic server was built without the feature.
/// Unless [`Policy::missing_key`](crate::Policy::missing_key) is set all requests share one bucket then: the limit holds, but too
/// strictly. While that lasts, an error is logged every ten seconds, a
/// [health check](crate::Limiter::health_check) has a [warning](crate::store::HealthWarning), and in a debug build the problem details of
/// rejections say why.
///
/// Behind a proxy the peer is the proxy: see [`client_ip`](crate::extract::client_ip).
pub const fn peer() -> Peer {
    Peer {
        v4: 32,
        v6: 64,
        nat64: None,
    }
}

/// The extractor of the peer's address, from [`peer`].
#[derive(Clone, Debug)]
pub struct Peer {
    v4: u8,
    v6: u8,
    /// The prefix of the network's own NAT64; text that is none is an error of `validate`.
    nat64: Option<Result<Nat64, InvalidValue>>,
}

/// The peer's address in a request's extensions, for [`peer`] and [`client_ip`](crate::extract::client_ip): inserted by a
/// server or middleware that knows it, or by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

impl Peer {
    /// Counts IPv6 addresses by their first `bits`. Default: 64; more than 128 is a [`ConfigError`](crate::ConfigError) when
    /// the limiter is built.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.v6 = bits;
        self
    }

    /// Counts IPv4 addresses by their first `bits`. Default: 32; more is a [`ConfigError`](crate::ConfigError) when the limiter
    /// is built.
    #[must_use]
    pub fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.v4 = bits;
        self
    }

    /// Sets the prefix of the network's own NAT64 (RFC 6052), such as `64:ff9b:1::/96` (RFC 8215): IPv4 clients behind it count by their
    /// IPv4 address. The well-known prefix `64:ff9b::/96` needs no setting. Text that is no prefix of 32, 40, 48, 56, 64 or 96
    /// bits is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    #[must_use]
    pub fn nat64(mut self, prefix: impl ToString) -> Self {
        let text = prefix.to_string();
        let invalid = |expected| InvalidValue::new(format!("a NAT64 prefix {text:?}"), expected);
        self.nat64 = Some(Nat64::parse(&text).map_err(invalid));
        self
    }

    /// The address of a client, where the network's NAT64 has translated it.
    pub(crate) fn translated(&self, address: IpAddr) -> IpAddr {
        match &self.nat64 {
            Some(Ok(nat64)) => nat64.translated(address),
            _ => address,
        }
    }

    /// The prefixes that are not the default ones, as text, each after a space.
    pub(crate) fn settings_text(&self) -> String {
        let mut text = String::new();
        if self.v6 != peer().v6 {
            text.push_str(&format!(" ipv6_prefix {}", self.v6));
        }
        if self.v4 != peer().v4 {
            text.push_str(&format!(" ipv4_prefix {}", self.v4));
        }
        if let Some(Ok(nat64)) = &self.nat64 {
            text.push_str(&format!(" nat64 {nat64}"));
        }
        text
    }

    /// The key of an address, by the prefix that counts.
    pub(crate) fn key_of(&self, address: IpAddr) -> Key {
        Key::network(self.translated(address), self.v4, self.v6)
    }
}

impl KeyExtractor for Peer {
    fn extract(&self, parts: &Parts) -> Extracted {
        let address = peer_of(&parts.extensions);
        address.map(|address| self.key_of(address)).into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        Some(self.key_of(address::parse(field::text(texts)?)?))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(format!("peer{}", self.settings_text()).into())
    }

    fn on_missing_key(&self) -> MissingKey {
        MissingKey::Shared
    }

    fn missing_key_name(&self, _parts: Option<&Parts>) -> Cow<'static, str> {
        "a client address".into()
    }

    fn missing_key_hint(&self) -> &'static str {
        NO_PEER
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        if self.v4 > 32 || self.v6 > 128 {
            return Err(InvalidValue::new(
                format!("address prefixes of {} and {} bits", self.v4, self.v6),
                "at most 32 bits of IPv4 and 128 of IPv6",
            ));
        }
        match &self.nat64 {
            Some(Err(invalid)) => Err(invalid.clone()),
            _ => Ok(()),
        }
    }
}

/// How to make the addresses of peers known, where requests lack them.
pub(crate) const NO_PEER: &str = "there is no ConnectInfo of axum 0.8 in the request's extensions, so its client's address is \
     unknown; with axum 0.8, serve `app.into_make_service_with_connect_info::<SocketAddr>()`; with another version of axum, \
     whose ConnectInfo is another type, and elsewhere, insert tollgate's `PeerAddr`; on a Unix socket, which has no addresses, and behind proxies whose addresses aren't known, count by \
     `extract::client_ip().hops(1)`, the address that one proxy has added to X-Forwarded-For; with tonic, enable tollgate's feature \
     `tonic`, and `tonic-tls` if the application accepts TLS connections itself";

/// The address of the socket's peer, IPv4 as IPv4 also where it came over IPv6.
pub(crate) fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    socket(extensions).map(|address| address.ip().to_canonical())
}

fn socket(extensions: &Extensions) -> Option<SocketAddr> {
    if let Some(PeerAddr(address)) = extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    {
        use ::axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
        if let Some(ConnectInfo(address)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(*address);
        }
        if let Some(MockConnectInfo(address)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(*address);
        }
    }
    #[cfg(feature = "tonic")]
    {
        use ::tonic::transport::server::TcpConnectInfo;
        if let Some(peer) = extensions.get::<TcpConnectInfo>() {
            return peer.remote_addr();
        }
        #[cfg(feature = "tonic-tls")]
        {
            use ::tonic::transport::server::TlsConnectInfo;
            if let Some(peer) = extensions.get::<TlsConnectInfo<TcpConnectInfo>>() {
                return peer.get_ref().remote_addr();
            }
        }
    }
    None
}
