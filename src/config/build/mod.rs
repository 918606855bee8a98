//! From a document to a limiter or a layer.

use crate::{
    RateLimitLayer,
    changes::Changes,
    config::{
        Secret,
        document::Document,
        error::{LoadError, MAX_MISTAKES, Mistake},
        registry::Registry,
        tree::path::Path,
    },
    error::{ConfigError, InvalidValue},
    extract::{
        bearer,
        section::{BearerSection, SharedByKeys},
    },
    limiter::{Limiter, LimiterBuilder},
    respond::LayerSettings,
};

mod access;
mod check;
mod limiter;
mod policy;
mod response;
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
        self.error(vec![self.mistake(&path, error.value(), error.expected())])
    }

    /// The path of what a builder's error is about.
    fn path_of(&self, error: &ConfigError) -> Path {
        let mut path = Path::default();
        let mut section = None;
        if let Some(policy) = error.policy() {
            path = path.key("policies").key(policy);
            section = self.policies.get(policy);
        }
        let Some(field) = error.field() else {
            return path;
        };
        // The builder has one list of quotas: those of `tier_quotas`, then those of `tiers`.
        if let Some(section) = section.filter(|_| field.name == "tier_quotas[]")
            && let Some(tier) = field.index.checked_sub(section.tier_quotas.len())
        {
            let tier = section.tiers.iter().nth(tier);
            return path.key("tiers").key(tier.map_or("", |(name, _)| name));
        }
        for key in field.name.split('.') {
            path = match key.strip_suffix("[]") {
                Some(array) => path.key(array).index(field.index),
                None => path.key(key),
            };
        }
        path
    }
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

    /// What the document says that `client_ip` and `bearer` stand for.
    fn shared_by_keys(&self) -> SharedByKeys {
        let bearer = self.document.bearer.as_ref();
        let hash_key = bearer.and_then(|bearer| bearer.hash_key.as_ref());
        SharedByKeys {
            client_ip: self.document.client_ip.clone(),
            bearer: hash_key.map(|secret| BearerSection {
                hash_key: Some(secret.source(self.document.folder())),
            }),
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
        let mistake = self.document.mistake(path, found, expected);
        self.note(mistake);
    }

    /// Notes a mistake that a builder has found, unless one at the same path is known, from which it may follow.
    fn found_by_builder(&mut self, error: &ConfigError) {
        if self.mistakes.len() < MAX_MISTAKES {
            let path = self.document.path_of(error);
            let text = path.to_string();
            if !self.mistakes.iter().any(|known| known.path() == text) {
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
        let mistake = self.document.mistake(path, error.value(), error.expected());
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
