//! Access lists, and how they find addresses.

use std::{
    collections::HashMap,
    net::IpAddr,
    path::PathBuf,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Build, listed};
use crate::{
    access::{AccessList, AddressList, KeyList},
    config::{
        document::access::{AddressesSection, KeyText, KeysSection, ListSection},
        path::Path,
        secret::{expand, has_text},
    },
    error::InvalidValue,
    extract::{KeyExtractor, client_ip},
    key::Key,
    policy::Policy,
};

impl Build<'_> {
    pub(super) fn list(
        &mut self,
        path: &Path,
        list: &ListSection,
        policies: &HashMap<&str, &Policy>,
    ) -> Option<AccessList> {
        match (&list.addresses, &list.policy, &list.keys) {
            (Some(addresses), None, None) => {
                let list = self.addresses(&path.key("addresses"), addresses)?;
                Some(match self.document.client_ip {
                    Some(_) => list.client_ip(self.registry.client_ip()).into(),
                    None => list.into(),
                })
            }
            (None, Some(policy), Some(keys)) => {
                if self.document.policies.get(policy).is_none() {
                    let names = self.document.policies.keys().map(String::as_str);
                    let expected = format!("one of the policies {}", listed(names));
                    self.found(&path.key("policy"), format!("{policy:?}"), expected);
                    return None;
                }
                let policy = policies.get(policy.as_str())?;
                let list = self.keys(&path.key("keys"), policy, keys)?;
                Some(list.into())
            }
            _ => {
                let found = "a list that is neither of addresses nor of keys";
                let expected = "addresses, or policy and keys";
                self.found(path, found, expected);
                None
            }
        }
    }

    fn addresses(&mut self, path: &Path, addresses: &AddressesSection) -> Option<AddressList> {
        match addresses {
            AddressesSection::Entries(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    let one = AddressList::new([entry]);
                    self.checked(&path.index(index), one);
                }
                AddressList::new(entries).ok()
            }
            AddressesSection::File(file) => {
                let list = AddressList::from_file(self.file(&file.file));
                self.checked(&path.key("file"), list)
            }
        }
    }

    fn keys(&mut self, path: &Path, policy: &Policy, keys: &KeysSection) -> Option<KeyList> {
        let text = policy
            .extractor()
            .config_text()
            .unwrap_or("code of the application".into());
        let form = match text.contains('|') {
            true => "an array of the alternative's number, from \"1\" on, and the text",
            false => "text",
        };
        let expected = format!(
            "{form} of which the policy's key makes a key, or hash: and the 20 characters of one; the key is {text}",
        );
        match keys {
            KeysSection::Entries(texts) => {
                let mut keys = Vec::new();
                for (index, text) in texts.iter().enumerate() {
                    let path = path.index(index);
                    if is_credential(policy.extractor(), text) {
                        let expected = "hash: and the 20 characters of its key, \"${NAME}\", or { file = \"path\" } for all keys";
                        self.found(&path, "a credential in the document", expected);
                        continue;
                    }
                    let Some(value) = self.value(&path, expanded(text)) else {
                        continue;
                    };
                    match key_of(policy, &value) {
                        Some(key) => keys.push(key),
                        None => self.found(&path, "text that is no key", expected.clone()),
                    }
                }
                Some(KeyList::new(policy.name(), keys))
            }
            KeysSection::File(file) => {
                let invalid = Arc::new(AtomicBool::new(false));
                let (noted, of_policy) = (invalid.clone(), policy.clone());
                let of_line = move |line: &str| {
                    key_of_text(&of_policy, line).unwrap_or_else(|| {
                        noted.store(true, Ordering::Relaxed);
                        // A key that no request has.
                        Key::missing()
                    })
                };
                let path = path.key("file");
                let list = KeyList::from_file(policy.name(), self.file(&file.file), of_line);
                let list = self.checked(&path, list)?;
                if invalid.load(Ordering::Relaxed) {
                    self.found(&path, "a file with lines that are no keys", expected);
                }
                Some(list)
            }
        }
    }

    fn file(&self, path: &std::path::Path) -> PathBuf {
        self.document.folder().join(path)
    }

    /// Checks how `client_ip` finds addresses.
    pub(super) fn check_client_ip(&mut self) {
        let Some(section) = &self.document.client_ip else {
            return;
        };
        let path = Path::default().key("client_ip");
        for (index, proxy) in section.trusted_proxies.iter().enumerate() {
            let one = client_ip().trusted_proxies([proxy]).validate();
            self.value(&path.key("trusted_proxies").index(index), one);
        }
        let mut others = section.clone();
        others.trusted_proxies.clear();
        let is_list = others.hops.is_some();
        let client = others.extractor();
        if section.header.is_some() && section.forwarded == Some(true) {
            let found = "true together with header";
            self.found(&path.key("forwarded"), found, "one of them");
        }
        // A header of one address is read from trusted proxies alone.
        let client = match is_list {
            false => client.trusted_proxies([IpAddr::from([127, 0, 0, 1])]),
            true => client,
        };
        self.value(&path, client.validate());
    }
}

/// Stands before the hash of a key.
const HASH: &str = "hash:";

/// Whether an entry of a list is of texts alone, rather than of a variable or a hash, where the extractor hashes one of them.
fn is_credential(extractor: &dyn KeyExtractor, entry: &KeyText) -> bool {
    let texts = match entry {
        KeyText::One(text) => slice::from_ref(text),
        KeyText::Parts(texts) => texts,
    };
    // Of short texts a key has no hash, unless one is hashed. The number of an alternative, and addresses, are needed.
    let short = texts.iter().map(|text| match text.parse::<IpAddr>() {
        Ok(_) => "::1",
        Err(_) if text.len() == 1 => &**text,
        Err(_) => "x",
    });
    let short: Vec<&str> = short.collect();
    let is_text = |text: &String| has_text(text) && hash_of(text).is_none();
    let key = extractor.key_from_text(&short);
    texts.iter().all(is_text) && key.is_some_and(|key| key.has_hash())
}

fn hash_of(text: &str) -> Option<Key> {
    Key::from_hash(text.strip_prefix(HASH)?)
}

/// The entry with the values of the environment's variables.
fn expanded(text: &KeyText) -> Result<KeyText, InvalidValue> {
    match text {
        KeyText::One(text) => expand(text).map(KeyText::One),
        KeyText::Parts(texts) => {
            let texts = texts.iter().map(|text| expand(text));
            texts.collect::<Result<_, _>>().map(KeyText::Parts)
        }
    }
}

fn key_of(policy: &Policy, text: &KeyText) -> Option<Key> {
    match text {
        KeyText::One(text) => key_of_text(policy, text),
        KeyText::Parts(texts) => key_of_parts(policy.extractor(), texts),
    }
}

/// What a request has counts before the key as the command line and the admin API show it, since a credential may look like one.
fn key_of_text(policy: &Policy, text: &str) -> Option<Key> {
    let in_request = || policy.extractor().key_from_text(&[text]);
    hash_of(text)
        .or_else(in_request)
        .or_else(|| policy.parse_key(text))
}

/// The key of several texts, of which some may be hashes.
fn key_of_parts(extractor: &dyn KeyExtractor, texts: &[String]) -> Option<Key> {
    let hash = |text: &String| text.strip_prefix(HASH).map(str::to_owned);
    if texts.iter().all(|text| hash(text).is_none()) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        return extractor.key_from_text(&texts);
    }
    // The key with another text in place of each hash has a hash in the same place.
    let others: Vec<&str> = texts
        .iter()
        .map(|text| hash(text).map_or(&**text, |_| "text"))
        .collect();
    let like = extractor.key_from_text(&others)?;
    let mut parts = Vec::new();
    let mut like = like.as_str().split('+');
    for text in texts {
        let part = like.next()?;
        parts.push(match (hash(text), part.strip_prefix('#')) {
            (Some(hash), Some(_)) => Key::from_hash(&hash)?,
            (None, Some(hash)) => Key::from_hash(hash)?,
            (None, None) => Key::new(part),
            (Some(_), None) => return None,
        });
    }
    like.next().is_none().then(|| Key::tuple(parts))
}
