//! The parts of a document that keys share: how addresses are found, and how tokens are hashed.

use serde::Deserialize;

use crate::{
    config::secret::Secret,
    extract::{ClientIp, client_ip},
};

/// How clients' addresses are found behind proxies, where a key or list is by `client_ip`: see
/// [`extract::client_ip`](crate::extract::client_ip).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ClientIpSection {
    /// The networks and addresses of trusted proxies.
    pub trusted_proxies: Vec<String>,
    /// The number of proxies that add to the list: from 1 to 64.
    pub hops: Option<usize>,
    /// Whether `Forwarded` is read in place of `X-Forwarded-For`. Default: false.
    pub forwarded: Option<bool>,
    /// A header that holds only the client's address, which is read in place of `X-Forwarded-For`.
    pub header: Option<String>,
    /// Further headers that hold only the client's address: of all, the first that a request has is read.
    pub further_headers: Vec<String>,
    /// The prefix of the network's own NAT64 (RFC 6052), such as `64:ff9b:1::/96`. `64:ff9b::/96` needs none.
    pub nat64: Option<String>,
    /// The bits of an IPv6 address that count. Default: 64.
    pub ipv6_prefix: Option<u8>,
    /// The bits of an IPv4 address that count. Default: 32.
    pub ipv4_prefix: Option<u8>,
}

impl ClientIpSection {
    /// The extractor with these settings.
    pub(crate) fn extractor(&self) -> ClientIp {
        let mut client = client_ip();
        if !self.trusted_proxies.is_empty() {
            client = client.trusted_proxies(&self.trusted_proxies);
        }
        if let Some(hops) = self.hops {
            client = client.hops(hops);
        }
        if self.forwarded == Some(true) {
            client = client.forwarded();
        }
        for header in self.header.iter().chain(&self.further_headers) {
            client = client.header(header);
        }
        if let Some(prefix) = &self.nat64 {
            client = client.nat64(prefix);
        }
        if let Some(bits) = self.ipv6_prefix {
            client = client.ipv6_prefix(bits);
        }
        if let Some(bits) = self.ipv4_prefix {
            client = client.ipv4_prefix(bits);
        }
        client
    }
}

/// How bearer tokens are hashed, where a key is by `bearer`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct BearerSection {
    /// The secret key that tokens are hashed under: 32 bytes, as 64 hexadecimal digits. Default: none.
    pub hash_key: Option<Secret>,
}
