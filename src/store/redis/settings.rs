//! The settings of a store, in the words of a configuration document: to write them out, and to compare two stores without
//! opening one.

use std::fmt;

use super::config::{ConnectConfig, ServerConfig};
use crate::{redact::CODE, setting::SettingValue};

/// The settings of a store. Equal if the stores count on the same servers in the same way.
#[derive(Clone)]
pub(crate) struct StoreSettings {
    values: Vec<(&'static str, SettingValue)>,
    /// A hash of each value, with its secrets.
    hashes: Vec<(&'static str, blake3::Hash)>,
    by_document: bool,
}

impl StoreSettings {
    pub(super) fn new(by_document: bool) -> Self {
        Self {
            values: Vec::new(),
            hashes: Vec::new(),
            by_document,
        }
    }

    pub(super) fn servers(
        &mut self,
        connect: &ConnectConfig,
        secret: impl Fn(&str) -> SettingValue,
    ) {
        let secrets = |urls: &[String]| SettingValue::list(urls.iter().map(|url| secret(url)));
        match &connect.servers {
            Some(ServerConfig::Url(url)) => self.add("url", secret(url), url),
            Some(ServerConfig::Cluster(urls)) => {
                self.add("cluster", secrets(urls), &urls.join("\n"));
            }
            Some(ServerConfig::Sentinel { name, urls }) => {
                let server_url = connect.server_url_template.as_deref();
                let server = server_url.map(|url| ("server_url", secret(url)));
                let master = ("master", SettingValue::text(name.clone()));
                let table = [master, ("urls", secrets(urls))].into_iter().chain(server);
                let all = format!("{name}\n{server_url:?}\n{}", urls.join("\n"));
                self.add("sentinel", SettingValue::table(table), &all);
            }
            Some(ServerConfig::Config(_) | ServerConfig::Pool(_)) | None => {
                self.add("url", SettingValue::text(CODE), CODE);
            }
        }
    }

    #[cfg(feature = "redis-tls")]
    pub(super) fn tls(&mut self, connect: &ConnectConfig, secret: impl Fn(&str) -> SettingValue) {
        let client = connect.tls.client.as_ref();
        let parts = [
            ("root_certificates", connect.tls.root.as_ref()),
            (
                "client_certificate",
                client.map(|client| &client.client_cert),
            ),
            ("client_key", client.map(|client| &client.client_key)),
        ];
        let mut table = Vec::new();
        let mut all = String::new();
        for (name, pem) in parts {
            if let Some(pem) = pem {
                let pem = String::from_utf8_lossy(pem);
                table.push((name, secret(&pem)));
                all.push_str(&format!("{name}: {pem}"));
            }
        }
        if !table.is_empty() {
            self.add("tls", SettingValue::table(table), &all);
        }
    }

    pub(super) fn add(&mut self, name: &'static str, value: SettingValue, secret: &str) {
        self.values.push((name, value));
        self.hashes.push((name, blake3::hash(secret.as_bytes())));
    }

    /// Whether the store was opened by a document.
    pub(crate) fn is_by_document(&self) -> bool {
        self.by_document
    }

    /// The settings that are no defaults, without secrets.
    pub(crate) fn value(&self) -> SettingValue {
        SettingValue::table(self.values.iter().cloned())
    }

    /// The names of the settings that two stores don't share.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let lacks = |hashes: &[_], hash| !hashes.contains(hash);
        let own = self.hashes.iter().filter(|hash| lacks(&other.hashes, hash));
        let others = other.hashes.iter().filter(|hash| lacks(&self.hashes, hash));
        let mut names: Vec<_> = own.chain(others).map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Without hashes, by which a secret could be guessed.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSettings({})", self.value())
    }
}
