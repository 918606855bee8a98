use std::path::{Path, PathBuf};

use super::Document;
use crate::{
    access::section::{AddressesSection, KeysSection, ListSection},
    extract::section::BearerSection,
    secret::Secret,
    store::section::{SentinelSection, StoreSection, TlsSection},
};

impl Document {
    /// The files that the document names: lists, and secrets that are kept in files. A limiter that is built of the document
    /// reads them.
    pub fn files(&self) -> Vec<PathBuf> {
        let lists = self.deny.iter().chain(&self.allow);
        let bearer = self.bearer.as_ref().and_then(BearerSection::secret);
        let store = self.store.iter().flat_map(StoreSection::secrets);
        let secrets = bearer.into_iter().chain(store);
        let files = lists
            .filter_map(ListSection::file)
            .chain(secrets.filter_map(Secret::path));
        files.map(|file| self.folder().join(file)).collect()
    }
}

impl ListSection {
    fn file(&self) -> Option<&Path> {
        if let Some(AddressesSection::File(section)) = &self.addresses {
            return Some(&section.file);
        }
        match &self.keys {
            Some(KeysSection::File(section)) => Some(&section.file),
            _ => None,
        }
    }
}

impl BearerSection {
    fn secret(&self) -> Option<&Secret> {
        let Self { hash_key } = self;
        hash_key.as_ref()
    }
}

impl StoreSection {
    fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let nodes = self.cluster.iter().flatten();
        let sentinel = self.sentinel.iter().flat_map(SentinelSection::secrets);
        let tls = self.tls.iter().flat_map(TlsSection::secrets);
        self.url.iter().chain(nodes).chain(sentinel).chain(tls)
    }
}

impl SentinelSection {
    fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let Self {
            master: _,
            urls,
            server_url,
        } = self;
        urls.iter().chain(server_url)
    }
}

impl TlsSection {
    fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let Self {
            root_certificates,
            client_certificate,
            client_key,
        } = self;
        let secrets = [root_certificates, client_certificate, client_key];
        secrets.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Format;

    #[test]
    fn every_file_that_a_document_names_is_found() {
        let text = r#"
            deny = [{ addresses = { file = "0" } }, { addresses = ["192.0.2.1"] }]
            allow = [{ policy = "api", keys = { file = "1" } }, { policy = "api", keys = ["alice"] }]
            [bearer]
            hash_key = { file = "2" }
            [store]
            url = { file = "3" }
            cluster = [{ file = "4" }, "redis://127.0.0.1"]
            sentinel = { master = "m", urls = [{ file = "5" }], server_url = { file = "6" } }
            [store.tls]
            root_certificates = { file = "7" }
            client_certificate = { file = "8" }
            client_key = { file = "/9" }
            [policies.api]
            quota = "1/s"
        "#;
        let document = Document::parse_file(text, Path::new("folder/limits.toml"));
        let files = document.expect("a document").files();
        let all = (0..9).map(|number| Path::new("folder").join(number.to_string()));
        let all: Vec<_> = all.chain([PathBuf::from("/9")]).collect();
        assert_eq!(files, all);
        let document = Document::parse("policies.api.quota = '1/s'", Format::Toml);
        assert!(document.expect("a document").files().is_empty());
    }
}
