//! The parts of a document about addresses and access lists.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    config::{secret::Secret, tree::secret},
    extract::{ClientIp, client_ip},
    setting::{SettingValue, values::forms},
};

/// A list of requests that are denied or allowed: of addresses, or of keys of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ListSection {
    /// Addresses and networks, such as `"192.0.2.0/24"`, or a file with one in each line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressesSection>,
    /// The name of the policy whose keys these are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Keys as the policy's key finds them in requests, or a file with one in each line.
    #[serde(deserialize_with = "secret", skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeysSection>,
}

forms! {
    /// Addresses and networks.
    pub enum AddressesSection, "an array of addresses and networks, or { file = \"path\" }" {
        /// These.
        Entries(Vec<String>) from array;
        /// Those of a file.
        File(FileSection) from table;
    }
}

forms! {
    /// Keys of a policy.
    pub enum KeysSection, "an array of keys, or { file = \"path\" }" {
        /// These.
        Entries(Vec<KeyText>) from array;
        /// Those of a file.
        File(FileSection) from table;
    }
}

forms! {
    /// The text of a key, in which `${NAME}` is the value of the environment's variable `NAME` and `$$` is `$`. It may be a
    /// credential: `Debug` and errors don't show it. [`Document::to_text`] does, since the list would be another one without
    /// it. `hash:` and the 20 characters of a hash, as in logs and the store, are a key of
    /// which only the hash is known: so a document need not hold credentials.
    ///
    /// [`Document::to_text`]: crate::config::Document::to_text
    pub enum KeyText, "the text of a key, or an array of texts" without Debug {
        /// A text as requests have it.
        One(String) from text;
        /// The texts of a key that consists of several.
        Parts(Vec<String>) from array;
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FileSection {
    /// The file's path. A relative path is relative to the document's folder.
    pub file: PathBuf,
}

/// How clients' addresses are found behind proxies, where a key or list is by `client_ip`: see
/// [`extract::client_ip`](crate::extract::client_ip).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ClientIpSection {
    /// The networks and addresses of trusted proxies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trusted_proxies: Vec<String>,
    /// The number of proxies that add to the list: from 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<usize>,
    /// Whether `Forwarded` is read in place of `X-Forwarded-For`. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<bool>,
    /// A header that holds only the client's address, which is read in place of `X-Forwarded-For`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The bits of an IPv6 address that count. Default: 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_prefix: Option<u8>,
    /// The bits of an IPv4 address that count. Default: 32.
    #[serde(skip_serializing_if = "Option::is_none")]
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
        if let Some(header) = &self.header {
            client = client.header(header);
        }
        if let Some(bits) = self.ipv6_prefix {
            client = client.ipv6_prefix(bits);
        }
        if let Some(bits) = self.ipv4_prefix {
            client = client.ipv4_prefix(bits);
        }
        client
    }

    /// What is set.
    pub(crate) fn value(&self) -> SettingValue {
        let number = |number: usize| SettingValue::Number(number as u64);
        let text = |text: &String| SettingValue::text(text.clone());
        let proxies = SettingValue::list(self.trusted_proxies.iter().map(text));
        let fields = [
            (
                "trusted_proxies",
                (!self.trusted_proxies.is_empty()).then_some(proxies),
            ),
            ("hops", self.hops.map(number)),
            ("forwarded", self.forwarded.map(SettingValue::Flag)),
            ("header", self.header.as_ref().map(text)),
            (
                "ipv6_prefix",
                self.ipv6_prefix.map(|bits| number(bits.into())),
            ),
            (
                "ipv4_prefix",
                self.ipv4_prefix.map(|bits| number(bits.into())),
            ),
        ];
        let set = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        SettingValue::table(set)
    }
}

/// How bearer tokens are hashed, where a key is by `bearer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct BearerSection {
    /// The secret key that tokens are hashed under: 32 bytes, as 64 hexadecimal digits. Default: none.
    #[serde(deserialize_with = "secret", skip_serializing_if = "Option::is_none")]
    pub hash_key: Option<Secret>,
}
