//! The parts of a document about access lists.

use std::{fmt, path::PathBuf};

use serde::Deserialize;

use crate::{access::OnUnknownAddress, config::forms::forms};

/// A list of requests that are denied or allowed: of addresses, or of keys of a policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ListSection {
    /// Addresses and networks, such as `"192.0.2.0/24"`, or a file with one in each line.
    pub addresses: Option<AddressesSection>,
    /// The name of the policy whose keys these are.
    pub policy: Option<String>,
    /// Keys as the policy's key finds them in requests, or a file with one in each line.
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
    /// The text of a key, in which `${NAME}` is the value of the environment's variable `NAME` and `$$` is `$`. `hash:` and the 20
    /// characters of a hash, as in logs and the store, are a key of which only the hash is known. Where the policy's key is hashed,
    /// it is a credential: text of the document's own is a mistake then. `Debug` and errors don't show it.
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FileSection {
    /// The file's path. A relative path is relative to the document's folder.
    pub file: PathBuf,
}

/// What happens to a request whose address an access list can't find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnUnknownAddressSection {
    /// The list is passed over.
    Pass,
    /// The request is rejected: 403 Forbidden.
    Reject,
}

impl From<OnUnknownAddressSection> for OnUnknownAddress {
    fn from(document: OnUnknownAddressSection) -> Self {
        match document {
            OnUnknownAddressSection::Pass => Self::Pass,
            OnUnknownAddressSection::Reject => Self::Reject,
        }
    }
}
