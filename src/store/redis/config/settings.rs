//! The settings of a store, in the words of a configuration document: to write them out, and to compare two stores without
//! opening one.

use std::fmt;

use blake3::Hash;
use redis::IntoConnectionInfo;

use super::{ConnectConfig, ServerConfig};
use crate::setting::{CODE, SettingValue};

/// The settings of a store.
#[derive(Clone)]
pub(crate) struct StoreSettings {
    values: Vec<(&'static str, SettingValue)>,
    /// A hash of each value without its credentials: equal if the stores count on the same servers in the same way.
    hashes: Vec<(&'static str, Hash)>,
    /// A hash of each value that may have credentials, with these.
    credentials: Vec<(&'static str, Hash)>,
    by_document: bool,
}

impl StoreSettings {
    pub(in crate::store::redis) fn new(by_document: bool) -> Self {
        Self {
            values: Vec::new(),
            hashes: Vec::new(),
            credentials: Vec::new(),
            by_document,
        }
    }

    pub(in crate::store::redis) fn servers(
        &mut self,
        connect: &ConnectConfig,
        secret: impl Fn(&str) -> SettingValue,
    ) {
        let secrets = |urls: &[String]| SettingValue::list(urls.iter().map(|url| secret(url)));
        let servers = |urls: &[String]| urls.iter().map(|url| server(url)).collect::<String>();
        match &connect.servers {
            Some(ServerConfig::Url(url)) => {
                self.add("url", secret(url), &server(url));
                self.add_credentials("url", url);
            }
            Some(ServerConfig::Cluster(urls)) => {
                self.add("cluster", secrets(urls), &servers(urls));
                self.add_credentials("cluster", &urls.join("\n"));
            }
            Some(ServerConfig::Sentinel { name, urls }) => {
                let template = connect.server_url_template.as_deref();
                let server_url = template.map(|url| ("server_url", secret(url)));
                let master = ("master", SettingValue::text(name.clone()));
                let table = [master, ("urls", secrets(urls))];
                let table = SettingValue::table(table.into_iter().chain(server_url));
                let identity = format!("{name}\n{:?}\n{}", template.map(server), servers(urls));
                self.add("sentinel", table, &identity);
                self.add_credentials("sentinel", &format!("{template:?}\n{}", urls.join("\n")));
            }
            Some(ServerConfig::Config(_) | ServerConfig::Pool(_)) | None => {
                self.add("url", SettingValue::text(CODE), CODE);
            }
        }
    }

    #[cfg(feature = "redis-tls")]
    pub(in crate::store::redis) fn tls(
        &mut self,
        connect: &ConnectConfig,
        secret: impl Fn(&str) -> SettingValue,
    ) {
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
            self.values.push(("tls", SettingValue::table(table)));
            self.add_credentials("tls", &all);
        }
    }

    /// Adds a value. Two stores with another `identity` are not the same.
    pub(in crate::store::redis) fn add(
        &mut self,
        name: &'static str,
        value: SettingValue,
        identity: &str,
    ) {
        self.values.push((name, value));
        self.hashes.push((name, blake3::hash(identity.as_bytes())));
    }

    fn add_credentials(&mut self, name: &'static str, credentials: &str) {
        let hash = blake3::hash(credentials.as_bytes());
        self.credentials.push((name, hash));
    }

    /// Whether the store was opened by a document.
    pub(crate) fn is_by_document(&self) -> bool {
        self.by_document
    }

    /// The settings that are no defaults, without secrets.
    pub(crate) fn value(&self) -> SettingValue {
        SettingValue::table(self.values.iter().cloned())
    }

    /// The names of the settings that two stores don't share, apart from credentials.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        differences(&self.hashes, &other.hashes)
    }

    /// The names of the settings whose credentials two stores don't share.
    pub(crate) fn differences_of_credentials(&self, other: &Self) -> Vec<&'static str> {
        differences(&self.credentials, &other.credentials)
    }
}

fn differences(
    hashes: &[(&'static str, Hash)],
    others: &[(&'static str, Hash)],
) -> Vec<&'static str> {
    let own = hashes.iter().filter(|hash| !others.contains(hash));
    let others = others.iter().filter(|hash| !hashes.contains(hash));
    let mut names: Vec<_> = own.chain(others).map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What a URL says of its server without user and password.
fn server(url: &str) -> String {
    match url.into_connection_info() {
        Ok(info) => {
            let settings = info.redis_settings();
            let (database, protocol) = (settings.db(), settings.protocol());
            format!("{:?} {database} {protocol:?}\n", info.addr())
        }
        // It can't be used, and no store has it.
        Err(_) => url.to_owned(),
    }
}

/// Without hashes, by which a secret could be guessed.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSettings({})", self.value())
    }
}
