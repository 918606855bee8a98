//! From a document to a limiter or a layer.

use std::{collections::HashMap, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};

use super::{
    Secret,
    document::{
        Document, SecretKind,
        response::{HeaderFormatSection, HeaderSettingsSection, HeadersSection, RejectionSection},
    },
    error::{LoadError, MAX_MISTAKES, Mistake},
    path::Path,
    registry::Registry,
};
use crate::{
    RateLimitLayer,
    changes::Changes,
    error::{ConfigError, InvalidValue},
    extract::bearer,
    headers::RateLimitHeaders,
    limiter::{Limiter, LimiterBuilder},
    respond::{LayerSettings, RejectionText},
    store::Store,
};

mod access;
mod policy;
mod store;

/// The most names that a mistake lists as valid.
const MAX_NAMES: usize = 20;

/// A document that is built, and its mistakes so far, up to [`MAX_MISTAKES`].
struct Build<'a> {
    document: &'a Document,
    /// The application's code, and what `client_ip` and `bearer` stand for in the document.
    registry: Registry,
    mistakes: Vec<Mistake>,
}

impl Document {
    /// Builds a limiter. Nothing connects before the first request.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with all mistakes: values that can't be used together, unknown names of policies and registered code,
    /// variables of the environment that are not set, files that can't be read, and what
    /// [`LimiterBuilder::build`] would reject.
    pub fn limiter(&self, registry: &Registry) -> Result<Limiter, LoadError> {
        let mut build = Build::new(self, registry);
        let store = build.store();
        let builder = build.limiter(store);
        build.finish()?;
        builder.build().map_err(|error| self.config_error(&error))
    }

    /// Returns a builder with everything that the document says about a limiter but the store, for an application that adds what
    /// documents don't have, such as a store of its own. The document's `store` is neither checked nor opened: its variables need
    /// not be set.
    ///
    /// ```
    /// use tollgate::{ManualClock, MemoryStore, config::{Document, Format, Registry}};
    ///
    /// let text = r#"
    /// [store]
    /// url = "${REDIS_URL}"
    ///
    /// [policies.api]
    /// quota = "1/min"
    /// "#;
    /// let clock = ManualClock::default();
    /// let limiter = Document::parse(text, Format::Toml)?
    ///     .builder(&Registry::new())?
    ///     .store(MemoryStore::builder().clock(clock).build())
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`limiter`](Self::limiter), but for the store: a strategy that can't count there is found when the builder builds.
    pub fn builder(&self, registry: &Registry) -> Result<LimiterBuilder, LoadError> {
        let mut build = Build::new(self, registry);
        let builder = build.limiter(None);
        build.finish()?;
        Ok(builder)
    }

    /// Builds a layer, and its limiter.
    ///
    /// ```
    /// use tollgate::config::{Document, Format, Registry};
    ///
    /// let text = r#"
    /// headers = "x_ratelimit"
    ///
    /// [policies.api]
    /// quota = "10/min"
    /// key = "user"
    /// "#;
    /// let user = tollgate::extract::extension::<String>(|user| tollgate::Key::new(user));
    /// let layer = Document::parse(text, Format::Toml)?.layer(&Registry::new().key("user", user))?;
    /// # Ok::<(), tollgate::config::LoadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`limiter`](Self::limiter).
    pub fn layer(&self, registry: &Registry) -> Result<RateLimitLayer, LoadError> {
        let mut build = Build::new(self, registry);
        let store = build.store();
        let builder: LimiterBuilder = build.limiter(store);
        let settings = build.layer();
        build.finish()?;
        let limiter = builder.build().map_err(|error| self.config_error(&error))?;
        let settings = settings.with_code(LayerSettings::default());
        Ok(RateLimitLayer::new(limiter).with_settings(settings))
    }

    /// Puts the document in force in a running limiter: see [`Limiter::reconfigure`]. The settings of a layer are left out.
    ///
    /// The store stays: a document with another one is an error. If only its user, passwords or certificates are others, such as
    /// those of a secret that was rotated, the rest of the document is put in force; its connections keep the credentials that they
    /// were opened with until the process is restarted, and the [`Changes`] say so. A document without a store fits a limiter whose
    /// store the application has opened itself.
    ///
    /// # Errors
    ///
    /// Those of [`limiter`](Self::limiter), and another store; nothing is changed then. The store is not opened to find that
    /// out.
    pub fn reconfigure(
        &self,
        limiter: &Limiter,
        registry: &Registry,
    ) -> Result<Changes, LoadError> {
        let mut build = Build::new(self, registry);
        let builder = build.limiter(Some(limiter.store()));
        let credentials = build.same_store(limiter);
        build.finish()?;
        let changes = limiter.reconfigure(builder);
        let changes = changes.map_err(|error| self.config_error(&error))?;
        Ok(changes.with_unused_credentials(&credentials))
    }

    /// Puts the document in force in a running layer and its limiter: see [`RateLimitLayer::reconfigure`].
    ///
    /// What code has set on the layer stays, such as `enabled(false)` on one that a document has built.
    ///
    /// # Errors
    ///
    /// Those of [`reconfigure`](Self::reconfigure), and each setting of the layer to which the document and code have given different values.
    pub fn reconfigure_layer(
        &self,
        layer: &RateLimitLayer,
        registry: &Registry,
    ) -> Result<Changes, LoadError> {
        let mut build = Build::new(self, registry);
        let builder = build.limiter(Some(layer.limiter().store()));
        let credentials = build.same_store(layer.limiter());
        let code = layer.settings().set_by_code();
        let settings = build.layer();
        for setting in settings.conflicts(&code) {
            let found = "another value than code has set on the layer";
            build.found(&Path::default().key(setting), found, "one of them");
        }
        let settings = settings.with_code(code);
        build.finish()?;
        let changes = layer.reconfigure(builder, |layer| layer.with_settings(settings));
        let changes = changes.map_err(|error| self.config_error(&error))?;
        Ok(changes.with_unused_credentials(&credentials))
    }

    /// The error that a store has returned when a policy was registered.
    fn config_error(&self, error: &ConfigError) -> LoadError {
        let path = self.path_of(error);
        self.error(vec![Mistake::new(&path, error.value(), error.expected())])
    }

    /// The path of what a builder's error is about.
    fn path_of(&self, error: &ConfigError) -> Path {
        let mut path = Path::default();
        if let Some(policy) = error.policy() {
            path = path.key("policies").key(policy);
        }
        for part in error
            .setting()
            .iter()
            .flat_map(|setting| setting.split('.'))
        {
            let array = part.strip_suffix(']').and_then(|part| part.split_once('['));
            path = match array.and_then(|(name, index)| Some((name, index.parse().ok()?))) {
                Some((name, index)) => path.key(name).index(index),
                None => path.key(part),
            };
        }
        // The builder has one list of quotas: those of `tier_quotas`, then those of `tiers`.
        if let Some(policy) = error.policy()
            && let Some(document) = self.policies.get(policy)
            && let Some(index) = quota_index(error)
            && let Some(tier) = index.checked_sub(document.tier_quotas.len())
            && let Some((name, _)) = document.tiers.get_index(tier)
        {
            path = Path::default()
                .key("policies")
                .key(policy)
                .key("tiers")
                .key(name);
        }
        path
    }
}

/// The index of a declared quota that a builder's error is about.
fn quota_index(error: &ConfigError) -> Option<usize> {
    let setting = error.setting()?;
    let index = setting.strip_prefix("tier_quotas[")?.strip_suffix(']')?;
    index.parse().ok()
}

impl<'a> Build<'a> {
    fn new(document: &'a Document, registry: &Registry) -> Self {
        let mut build = Self {
            document,
            registry: registry.clone(),
            mistakes: document.missing_values(),
        };
        for mistake in registry.mistakes() {
            let _: Option<()> = build.value(&Path::default(), Err(mistake.clone()));
        }
        build.check_secrets();
        let known = build.mistakes.len();
        build.check_client_ip();
        // If `client_ip` has a mistake, keys and lists are checked as if the document had none.
        if let Some(section) = &document.client_ip
            && build.mistakes.len() == known
        {
            build.registry = build.registry.with_client_ip(section.extractor());
        }
        if let Some(hash_key) = build.hash_key() {
            build.registry = build.registry.with_bearer(bearer().hash_key(hash_key));
        }
        build
    }

    /// Notes secrets that stand in the document itself: its text is shown to operators.
    fn check_secrets(&mut self) {
        for (path, kind, secret) in self.document.secrets() {
            let found = match kind {
                SecretKind::Url if secret.has_password() => "a password in the document",
                SecretKind::Key if secret.has_text() => "a key in the document",
                _ => continue,
            };
            let expected = "\"${NAME}\" in its place, or { file = \"path\" } for the whole";
            self.found(&path, found, expected);
        }
    }

    /// The key under which bearer tokens are hashed.
    fn hash_key(&mut self) -> Option<[u8; 32]> {
        let secret = self.document.bearer.as_ref()?.hash_key.as_ref()?;
        let path = Path::default().key("bearer").key("hash_key");
        let text = self.secret(&path, secret)?;
        let mut key = [0; 32];
        let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
        }
        if !is_hex {
            self.found(&path, "another text", "32 bytes, as 64 hexadecimal digits");
        }
        is_hex.then_some(key)
    }

    /// The error with all mistakes, if there are any.
    fn finish(self) -> Result<(), LoadError> {
        self.document.fail_on(self.mistakes)
    }

    /// Notes a mistake: what the document has at the path, and what is expected there.
    fn found(&mut self, path: &Path, found: impl Into<String>, expected: impl Into<String>) {
        let mistake = Mistake::new(path, found, expected);
        self.note(mistake);
    }

    /// Notes a mistake that a builder has found, unless one at the same path is known, from which it may follow.
    fn found_by_builder(&mut self, error: &ConfigError) {
        if self.mistakes.len() < MAX_MISTAKES {
            let path = self.document.path_of(error);
            let mut mistakes = self.mistakes.iter();
            if !mistakes.any(|known| *known.segments() == path) {
                self.found(&path, error.value(), error.expected());
            }
        }
    }

    fn note(&mut self, mistake: Mistake) {
        if self.mistakes.len() < MAX_MISTAKES {
            self.mistakes.push(mistake);
        }
    }

    /// The value at a path, unless it is a mistake, which is noted, with the reference that it could not resolve.
    fn value<T>(&mut self, path: &Path, value: Result<T, InvalidValue>) -> Option<T> {
        let mut invalid = match value {
            Ok(value) => return Some(value),
            Err(invalid) => invalid,
        };
        let unresolved = invalid.take_unresolved();
        let error = ConfigError::at("", invalid);
        let mistake = Mistake::new(path, error.value(), error.expected());
        self.note(mistake.unresolved_as(unresolved));
        None
    }

    /// As [`value`](Self::value), for the error of a builder whose field is known to be at this path.
    fn checked<T>(&mut self, path: &Path, value: Result<T, ConfigError>) -> Option<T> {
        value
            .map_err(|error| self.found(path, error.value(), error.expected()))
            .ok()
    }

    /// The value of a secret.
    fn secret(&mut self, path: &Path, secret: &Secret) -> Option<String> {
        let value = secret.value(self.document.folder());
        self.value(path, value)
    }
}

/// The builder with a setting, if the document has it.
fn with<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

/// Names in quotes: the first [`MAX_NAMES`], and how many others there are.
fn listed<'n>(mut names: impl Iterator<Item = &'n str>) -> String {
    let first: Vec<_> = names.by_ref().take(MAX_NAMES).collect();
    match names.count() {
        0 => format!("{first:?}"),
        others => format!("{first:?} and {others} others"),
    }
}

impl Build<'_> {
    /// The builder with all settings. `store` is the one that will count, if it is known.
    fn limiter<T>(&mut self, store: Option<Arc<dyn Store>>) -> LimiterBuilder<T> {
        let document = self.document;
        let root = Path::default();
        let mut builder = LimiterBuilder::new();
        for observer in self.registry.observers() {
            builder = builder.observe(observer.clone());
        }
        let policies = self.policies();
        for policy in &policies {
            builder = builder.policy(policy.clone());
        }
        let by_name = policies.iter().map(|policy| (policy.name(), policy));
        let by_name: HashMap<_, _> = by_name.collect();
        for (name, lists) in [("deny", &document.deny), ("allow", &document.allow)] {
            for (index, list) in lists.iter().enumerate() {
                let path = root.key(name).index(index);
                builder = match self.list(&path, list, &by_name) {
                    Some(list) if name == "deny" => builder.deny(list),
                    Some(list) => builder.allow(list),
                    None => builder,
                };
            }
        }
        let skip = self.conditions(&root.key("skip"), document.skip.as_ref());
        builder = with(builder, skip, LimiterBuilder::skip);
        let only = self.conditions(&root.key("only"), document.only.as_ref());
        builder = with(builder, only, LimiterBuilder::only);
        builder = with(builder, document.on_store_error, |builder, action| {
            builder.on_store_error(action)
        });
        builder = with(
            builder,
            document.on_misconfiguration.map(Into::into),
            LimiterBuilder::on_misconfiguration,
        );
        builder = with(
            builder,
            document.on_unknown_address.map(Into::into),
            LimiterBuilder::on_unknown_address,
        );
        builder = with(
            builder,
            document.count_preflights,
            LimiterBuilder::count_preflights,
        );
        builder = with(builder, store, LimiterBuilder::shared_store);
        for error in builder.mistakes() {
            self.found_by_builder(&error);
        }
        builder
    }
}

impl Build<'_> {
    /// The settings of the layer, with code in their slot.
    fn layer(&mut self) -> LayerSettings {
        let document = self.document;
        let root = Path::default();
        let path = root.key("on_rejection");
        if document.on_rejection.is_some() && document.rejection.is_some() {
            let found = "a function together with the text of rejection";
            self.found(&path, found, "one of them");
        }
        let on_rejection = document.on_rejection.as_ref().and_then(|name| {
            let respond = self.registry.find_on_rejection(name);
            self.value(&path, respond)
        });
        let rejection = document.rejection.as_ref().map(|text| {
            let RejectionSection { body, content_type } = text.clone();
            RejectionText { body, content_type }
        });
        if let Some(text) = &rejection {
            text.validate(&mut |invalid| self.found_by_builder(&ConfigError::at("", invalid)));
        }
        let headers = document.headers.as_ref();
        let headers = headers.map(|headers| self.headers(&root.key("headers"), headers));
        LayerSettings {
            enabled: document.enabled,
            headers,
            rejections: document.rejections.map(Into::into),
            rejection,
            on_rejection,
            rejection_headers: self.rejection_headers(),
            refund_handler_rejections: document.refund_handler_rejections,
            ..LayerSettings::default()
        }
    }

    /// The fixed fields of rejections.
    fn rejection_headers(&mut self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.document.rejection_headers {
            let path = Path::default().key("rejection_headers").key(name);
            match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                (Ok(name), Ok(_)) if [CONTENT_LENGTH, TRANSFER_ENCODING].contains(&name) => {
                    let expected = "a field that does not say where the body ends";
                    self.found(&path, format!("a header {name:?}"), expected);
                }
                (Ok(name), Ok(value)) => {
                    if headers.insert(name, value).is_some() {
                        self.found(&path, "the same name in other letters", "one of them");
                    }
                }
                (Ok(_), Err(_)) => {
                    self.found(&path, format!("{value:?}"), "visible characters and spaces");
                }
                (Err(_), _) => {
                    let found = format!("a header {name:?}");
                    self.found(&path, found, "a field name of RFC 9110");
                }
            }
        }
        (!headers.is_empty()).then_some(headers)
    }

    /// The fields of a document. A named policy that the format doesn't describe, or that there is none of, is a mistake.
    fn headers(&mut self, path: &Path, document: &HeadersSection) -> RateLimitHeaders {
        let settings = match document {
            HeadersSection::Format(format) => HeaderSettingsSection {
                format: *format,
                ..HeaderSettingsSection::default()
            },
            HeadersSection::Settings(settings) => settings.clone(),
        };
        let (mut headers, groups) = match settings.format {
            HeaderFormatSection::Draft => (RateLimitHeaders::draft(), 0),
            HeaderFormatSection::XRatelimit => (RateLimitHeaders::x_ratelimit(), 0),
            HeaderFormatSection::OpenAi => (RateLimitHeaders::openai(), 2),
            HeaderFormatSection::Anthropic => (RateLimitHeaders::anthropic(), 4),
            HeaderFormatSection::None => (RateLimitHeaders::none(), 0),
        };
        if let Some(jitter) = &settings.jitter
            && let Some(jitter) = self.duration(&path.key("jitter"), jitter)
        {
            headers = headers.jitter(jitter);
        }
        type SetPolicy = fn(RateLimitHeaders, String) -> RateLimitHeaders;
        let named: [(&str, Option<String>, SetPolicy); 4] = [
            ("requests", settings.requests, RateLimitHeaders::requests),
            ("tokens", settings.tokens, RateLimitHeaders::tokens),
            (
                "input_tokens",
                settings.input_tokens,
                RateLimitHeaders::input_tokens,
            ),
            (
                "output_tokens",
                settings.output_tokens,
                RateLimitHeaders::output_tokens,
            ),
        ];
        if groups > 0 && named.iter().all(|(_, policy, _)| policy.is_none()) {
            let expected =
                "the name of a policy, such as requests = \"api\" in a table with format";
            self.found(path, "fields of named policies without a name", expected);
        }
        for (index, (setting, policy, set)) in named.into_iter().enumerate() {
            let Some(policy) = policy else { continue };
            let path = path.key(setting);
            if index >= groups {
                let expected = match setting {
                    "requests" | "tokens" => "the format openai or anthropic",
                    _ => "the format anthropic",
                };
                let found = format!("the policy {policy:?}, for which the format has no fields");
                self.found(&path, found, expected);
            } else if !self.document.policies.contains_key(&policy) {
                let names = self.document.policies.keys().map(String::as_str);
                let expected = format!("one of the policies {}", listed(names));
                self.found(&path, format!("{policy:?}"), expected);
            } else {
                headers = set(headers, policy);
            }
        }
        headers
    }
}
