//! What a document that is put in force has to have in common with the store that is open.

use std::fmt::{self, Debug};

use blake3::Hash;
use redis::IntoConnectionInfo;

use super::RedisStoreBuilder;
use crate::redis::config::{ConnectConfig, ServerConfig};

/// Hashes of settings, by their names in a document.
type Hashes = Vec<(&'static str, Hash)>;

/// The settings by which two stores are compared.
#[derive(Clone)]
pub(crate) struct StoreSettings {
    /// The servers without their credentials, and all other settings: equal if the stores count alike on the same servers.
    settings: Hashes,
    /// Each value that may have credentials, with these.
    credentials: Hashes,
    by_document: bool,
}

impl RedisStoreBuilder {
    /// Says that a document opens the store.
    pub(crate) fn by_document(mut self) -> Self {
        self.by_document = true;
        self
    }

    /// The settings by which the store is compared with another one.
    pub(crate) fn settings(&self) -> StoreSettings {
        let hash = |text: &str| blake3::hash(text.as_bytes());
        let plain = |name, value: &dyn Debug| (name, hash(&format!("{value:?}")));
        let cache = (self.rejection_cache, self.rejection_cache_capacity);
        let (name, servers, secrets) = servers(&self.connect);
        let settings = vec![
            (name, hash(&servers)),
            plain("prefix", &self.prefix),
            plain("timeout", &self.timeout),
            plain("circuit_breaker_threshold", &self.breaker),
            plain("rejection_cache", &cache),
            plain("hash_tags", &self.connect.hash_tags),
            plain("overrides", &self.overrides),
        ];
        #[cfg(feature = "redis-tls")]
        let certificates = {
            let client = self.connect.tls.client.as_ref();
            let client = client.map(|own| (&own.client_cert, &own.client_key));
            (&self.connect.tls.root, client)
        };
        #[cfg(not(feature = "redis-tls"))]
        let certificates = ();
        StoreSettings {
            settings,
            credentials: vec![(name, hash(&secrets)), plain("tls", &certificates)],
            by_document: self.by_document,
        }
    }
}

impl StoreSettings {
    /// Whether the store was opened by a document.
    pub(crate) fn is_by_document(&self) -> bool {
        self.by_document
    }

    /// The names of the settings that two stores don't share, apart from credentials.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        differences(&self.settings, &other.settings)
    }

    /// The names of the settings whose credentials two stores don't share.
    pub(crate) fn differences_of_credentials(&self, other: &Self) -> Vec<&'static str> {
        differences(&self.credentials, &other.credentials)
    }
}

fn differences(own: &Hashes, others: &Hashes) -> Vec<&'static str> {
    let only_own = own.iter().filter(|hash| !others.contains(hash));
    let only_others = others.iter().filter(|hash| !own.contains(hash));
    let mut names: Vec<_> = only_own.chain(only_others).map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The name of the setting that has the servers, what identifies these, and their URLs with credentials.
fn servers(connect: &ConnectConfig) -> (&'static str, String, String) {
    let all = |urls: &[String]| urls.iter().map(|url| server(url)).collect::<String>();
    match &connect.servers {
        Some(ServerConfig::Url(url)) => ("url", server(url), url.clone()),
        Some(ServerConfig::Cluster(urls)) => ("cluster", all(urls), urls.join("\n")),
        Some(ServerConfig::Sentinel { name, urls }) => {
            let template = connect.server_url_template.as_deref();
            let servers = format!("{name}\n{:?}\n{}", template.map(server), all(urls));
            let secrets = format!("{template:?}\n{}", urls.join("\n"));
            ("sentinel", servers, secrets)
        }
        // The application has opened them, and no document can.
        Some(ServerConfig::Config(_) | ServerConfig::Pool(_)) | None => {
            ("url", "pool".to_owned(), String::new())
        }
    }
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
        f.debug_struct("StoreSettings").finish_non_exhaustive()
    }
}
