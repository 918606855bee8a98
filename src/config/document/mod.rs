//! Documents: what a configuration file says.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use indexmap::IndexMap;
use serde::Deserialize;

use self::{
    access::{AddressesSection, KeysSection, ListSection, OnUnknownAddressSection},
    keys::{BearerSection, ClientIpSection},
    policy::{ConditionsSection, OnMisconfigurationSection, OnStoreErrorSection, PolicyDocument},
    response::{HeadersSection, RejectionSection, RejectionsSection},
    store::StoreDocument,
};
use super::{
    Format, content,
    error::{LoadError, MAX_MISTAKES, Mistake},
    parse,
    path::Path as ValuePath,
};
use crate::config::secret::Secret;

pub(crate) mod access;
pub(crate) mod keys;
pub(crate) mod policy;
pub(crate) mod response;
pub(crate) mod store;

#[cfg(feature = "config-schema")]
mod schema;

/// The settings of a [`Limiter`](crate::Limiter), or of a [`RateLimitLayer`](crate::RateLimitLayer) and its limiter, as a
/// configuration file has them.
///
/// The fields have the names of the builders' methods, and what is left out has the builders' defaults. A limiter ignores the
/// settings of layers: `enabled`, `headers`, `rejections`, `rejection`, `on_rejection`, `rejection_headers` and
/// `refund_handler_rejections`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Document {
    /// The JSON Schema of the document, for editors.
    #[serde(rename = "$schema")]
    pub schema: Option<String>,
    /// Whether the layer limits requests. Default: true.
    pub enabled: Option<bool>,
    /// The rate-limit fields of responses: `draft` (default), `x_ratelimit`, `none`, or a table with `format` and `jitter`; for
    /// the formats `openai` and `anthropic` with `requests`, `tokens`, `input_tokens` and `output_tokens`, the names of policies.
    pub headers: Option<HeadersSection>,
    /// The form of the response to a rejected request: `default`, problem details or plain text for a browser, or the errors of
    /// `openai` or `anthropic`. `rejection` and `on_rejection` set the response in place of it.
    pub rejections: Option<RejectionsSection>,
    /// The body of the response to a rejected request. Default: problem details, or plain text for a browser.
    pub rejection: Option<RejectionSection>,
    /// The registered name of the function that responds to rejected requests, in place of `rejection`.
    pub on_rejection: Option<String>,
    /// Fixed header fields of the responses to rejected requests, over HTTP and gRPC.
    pub rejection_headers: BTreeMap<String, String>,
    /// Whether the layer refunds a request whose handler rejects it. Default: false.
    pub refund_handler_rejections: Option<bool>,
    /// What happens to a request in an outage of the store: `admit`, `reject` or `{ local_fallback = { processes = 4 } }`.
    /// Default: requests are admitted, and outgoing calls wait.
    pub on_store_error: Option<OnStoreErrorSection>,
    /// What happens to a request when the store is misconfigured. Default: `reject`.
    pub on_misconfiguration: Option<OnMisconfigurationSection>,
    /// What happens to a request whose address an access list can't find. Default: `pass`.
    pub on_unknown_address: Option<OnUnknownAddressSection>,
    /// Whether CORS preflights are counted. Default: false.
    pub count_preflights: Option<bool>,
    /// Requests to which no policy applies.
    pub skip: Option<ConditionsSection>,
    /// The only requests to which the policies apply.
    pub only: Option<ConditionsSection>,
    /// Requests that are denied.
    pub deny: Vec<ListSection>,
    /// Requests that are admitted without evaluating a policy.
    pub allow: Vec<ListSection>,
    /// How the key `client_ip`, and lists of addresses, find addresses behind proxies.
    pub client_ip: Option<ClientIpSection>,
    /// How the key `bearer` hashes tokens.
    pub bearer: Option<BearerSection>,
    /// The store. Default: counts are kept in process.
    pub store: Option<StoreDocument>,
    /// The policies by name, at least one.
    pub policies: IndexMap<String, PolicyDocument>,
    #[serde(skip)]
    pub(super) origin: Arc<Origin>,
}

/// What a document was read from.
#[derive(Default)]
pub(super) struct Origin {
    file: Option<PathBuf>,
    /// `None` for a document that was made by code.
    text: Option<(Box<str>, Format)>,
}

impl Document {
    /// Reads a document from a file, whose extension says its format: `.toml`, `.yaml` or `.yml`, `.json`. It blocks while it
    /// reads.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the file can't be read, is longer than 1 MiB or is no regular file, if the feature of its format is
    /// off, and for the mistakes of [`parse`](Self::parse).
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        Self::parse_file(&content::read(path)?, path)
    }

    /// Reads a document from the text of a file.
    pub(crate) fn parse_file(text: &str, path: &Path) -> Result<Self, LoadError> {
        let document = match Format::of(path) {
            Ok(format) => Self::read(text, format, Some(path)),
            Err(expected) => Err(Mistake::of_whole(
                "a file without a known extension",
                expected,
            )),
        };
        document.map_err(|mistake| LoadError::new(Some(path), vec![mistake]))
    }

    /// Reads a document from text. Relative paths in it are relative to the current folder.
    ///
    /// ```
    /// use tollgate::config::{Document, Format, Registry};
    ///
    /// let text = r#"
    /// [policies.api]
    /// quota = "100/min burst 20"
    /// key = "header:x-tenant"
    /// "#;
    /// let document = Document::parse(text, Format::Toml)?;
    /// let limiter = document.limiter(&Registry::new())?;
    /// assert_eq!(document.text(), text);
    /// # Ok::<(), tollgate::config::LoadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`LoadError`] with the first mistake of syntax or shape: a value of another type, an unknown field, or a missing one. A text
    /// may have values within at most 64 arrays and tables, and at most 4 MiB of texts and 2^19 values, with YAML's aliases
    /// replaced by what they stand for, which is at most 2^18 of those values.
    /// What the values mean is checked when a limiter is built, which finds all mistakes at once.
    pub fn parse(text: &str, format: Format) -> Result<Self, LoadError> {
        let document = Self::read(text, format, None);
        document.map_err(|mistake| LoadError::new(None, vec![mistake]))
    }

    fn read(text: &str, format: Format, file: Option<&Path>) -> Result<Self, Mistake> {
        let document: Self = parse::parse(text, format)?;
        Ok(Self {
            origin: Arc::new(Origin {
                file: file.map(Path::to_owned),
                text: Some((text.into(), format)),
            }),
            ..document
        })
    }

    /// A mistake if there are no policies, and one for each policy without a quota, up to [`MAX_MISTAKES`].
    pub(crate) fn missing_values(&self) -> Vec<Mistake> {
        let policies = ValuePath::default().key("policies");
        let mut mistakes = Vec::new();
        if self.policies.is_empty() {
            let expected = "at least one policy, such as [policies.api] with quota = \"100/min\"";
            mistakes.push(Mistake::new(&policies, "no policy", expected));
        }
        let lacks_quota =
            |policy: &PolicyDocument| policy.quota.is_none() && policy.block_list != Some(true);
        let without_quota = self.policies.iter();
        let without_quota = without_quota.filter(|(_, policy)| lacks_quota(policy));
        for (name, _) in without_quota.take(MAX_MISTAKES) {
            let path = policies.key(name).key("quota");
            mistakes.push(Mistake::new(
                &path,
                "nothing",
                "a quota such as \"100/min\"",
            ));
        }
        mistakes
    }

    /// The error of these mistakes, each at the position of its value, or of what would contain it.
    pub(crate) fn error(&self, mut mistakes: Vec<Mistake>) -> LoadError {
        if let Some((text, format)) = &self.origin.text {
            parse::locate(text, *format, &mut mistakes);
        }
        LoadError::new(self.file(), mistakes)
    }

    /// An error, if there are mistakes.
    pub(crate) fn fail_on(&self, mistakes: Vec<Mistake>) -> Result<(), LoadError> {
        match mistakes.is_empty() {
            true => Ok(()),
            false => Err(self.error(mistakes)),
        }
    }

    fn file(&self) -> Option<&Path> {
        self.origin.file.as_deref()
    }

    /// The folder that relative paths are relative to.
    pub(crate) fn folder(&self) -> &Path {
        let folder = self.file().and_then(Path::parent);
        folder.unwrap_or(Path::new(""))
    }

    /// The text that the document was read from: with its comments, and with the names of variables in place of their values.
    /// Empty if it was read from none; what was changed since is not in it.
    pub fn text(&self) -> &str {
        self.origin.text()
    }

    /// The [JSON Schema](https://json-schema.org/draft/2020-12/schema) of documents, by which editors complete and check them.
    #[cfg(feature = "config-schema")]
    pub fn schema() -> serde_json::Value {
        let mut schema = schemars::schema_for!(Self);
        schema.insert("title".to_owned(), "tollgate configuration".into());
        let mut schema = schema.to_value();
        schema::tidy(&mut schema);
        schema
    }
}

impl Origin {
    pub(super) fn text(&self) -> &str {
        let text = self.text.as_ref();
        text.map_or("", |(text, _)| text)
    }
}

/// Equal, whatever a document was read from.
impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl Document {
    /// The files that the document names: lists, and secrets that are kept in files. A limiter that is built of the document
    /// reads them.
    pub fn files(&self) -> Vec<PathBuf> {
        let lists = self.deny.iter().chain(&self.allow);
        let secrets = self.secrets().into_iter();
        let files = lists
            .filter_map(ListSection::file)
            .chain(secrets.filter_map(|(_, _, secret)| secret.path()));
        files.map(|file| self.folder().join(file)).collect()
    }

    /// The secrets, each with its path.
    pub(super) fn secrets<'a>(&'a self) -> Vec<(ValuePath, SecretKind, &'a Secret)> {
        use SecretKind::{Certificate, Key, Url};

        let mut secrets = Vec::new();
        let mut add = |path, kind, secret: Option<&'a Secret>| {
            secrets.extend(secret.map(|secret| (path, kind, secret)));
        };
        let root = ValuePath::default();
        if let Some(bearer) = &self.bearer {
            let path = root.key("bearer").key("hash_key");
            add(path, Key, bearer.hash_key.as_ref());
        }
        if let Some(store) = &self.store {
            let path = root.key("store");
            add(path.key("url"), Url, store.url.as_ref());
            for (index, url) in store.cluster.iter().flatten().enumerate() {
                add(path.key("cluster").index(index), Url, Some(url));
            }
            if let Some(sentinel) = &store.sentinel {
                let path = path.key("sentinel");
                for (index, url) in sentinel.urls.iter().enumerate() {
                    add(path.key("urls").index(index), Url, Some(url));
                }
                add(path.key("server_url"), Url, sentinel.server_url.as_ref());
            }
            if let Some(tls) = &store.tls {
                let path = path.key("tls");
                let (root, client) = (&tls.root_certificates, &tls.client_certificate);
                add(path.key("root_certificates"), Certificate, root.as_ref());
                add(path.key("client_certificate"), Certificate, client.as_ref());
                add(path.key("client_key"), Key, tls.client_key.as_ref());
            }
        }
        secrets
    }
}

/// What a secret is.
#[derive(Clone, Copy)]
pub(super) enum SecretKind {
    /// A URL, of which the password is secret.
    Url,
    Certificate,
    Key,
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
