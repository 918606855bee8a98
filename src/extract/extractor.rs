//! The trait of key extractors, and combinations of extractors.

use std::{borrow::Cow, fmt, sync::Arc};

use http::request::Parts;

use super::{field, text};
use crate::{error::InvalidValue, key::Key};

/// What a policy does with a request without a key: set by [`Policy::missing_key`](crate::Policy::missing_key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The policy does not apply to the request.
    Skip,
    /// The request is rejected with 400 Bad Request.
    Reject,
    /// All such requests share one bucket, under a key that no request can have.
    Shared,
}

/// What a [`KeyExtractor`] finds in a request.
///
/// An `Option<Key>` becomes one by `.into()`, in which `None` is [`Absent`](Extracted::Absent).
///
/// ```
/// use tollgate::{Key, KeyExtractor, extract::{self, Extracted}};
///
/// let (parts, ()) = http::Request::get("/?tenant=acme&tenant=evil").body(()).unwrap().into_parts();
/// assert_eq!(extract::query("tenant").extract(&parts), Extracted::Ambiguous);
/// assert_eq!(extract::query("user").extract(&parts), Extracted::Absent);
/// assert_eq!(extract::path().extract(&parts), Key::new("/").into());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Extracted {
    /// The request's key.
    Key(Key),
    /// The request has none: [`MissingKey`] says what becomes of it.
    Absent,
    /// The request has several that differ, and the application may read another one than the limiter. It is rejected with 400
    /// Bad Request whatever [`Policy::missing_key`](crate::Policy::missing_key) says: otherwise a caller could evade a limit by
    /// sending a credential twice. No further extractor of a combination is asked. In a shadow policy it changes nothing, unless
    /// an access list has keys of the policy; as a [caller](crate::Policy::caller) it counts as absent.
    Ambiguous,
}

impl Extracted {
    /// Returns the key; `None` if it is absent or ambiguous.
    pub fn key(self) -> Option<Key> {
        match self {
            Self::Key(key) => Some(key),
            Self::Absent | Self::Ambiguous => None,
        }
    }

    /// Returns what `other` finds if the key is absent, and otherwise itself.
    pub fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Absent => other(),
            Self::Key(_) | Self::Ambiguous => self,
        }
    }

    /// Makes another key of the key, if there is one.
    pub fn map(self, key: impl FnOnce(Key) -> Key) -> Self {
        match self {
            Self::Key(found) => Self::Key(key(found)),
            Self::Absent | Self::Ambiguous => self,
        }
    }
}

impl From<Key> for Extracted {
    fn from(key: Key) -> Self {
        Self::Key(key)
    }
}

impl From<Option<Key>> for Extracted {
    fn from(key: Option<Key>) -> Self {
        key.map_or(Self::Absent, Self::Key)
    }
}

/// Finds the key that a policy counts a request by. The functions of [`extract`](crate::extract) return the built-in
/// extractors.
///
/// Its methods run on request paths, from any thread: they must not block or panic.
///
/// ```
/// use http::request::Parts;
/// use tollgate::{Key, KeyExtractor, Policy, Quota, extract::Extracted};
///
/// /// The first segment of the path: `acme` of `/acme/orders`.
/// #[derive(Debug)]
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, parts: &Parts) -> Extracted {
///         let tenant = parts.uri.path().split('/').nth(1).filter(|tenant| !tenant.is_empty());
///         tenant.map(Key::new).into()
///     }
///
///     fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
///         texts.first().map(Key::new)
///     }
/// }
///
/// let (parts, ()) = http::Request::get("/acme/orders").body(()).unwrap().into_parts();
/// assert_eq!(Tenant.extract(&parts).key(), Some(Key::new("acme")));
/// let policy = Policy::new("tenants", Quota::requests(100).per_minute()).key(Tenant);
/// ```
///
/// ```compile_fail,E0277
/// # use tollgate::{Policy, Quota};
/// // The name of a header is no extractor; `extract::header("x-tenant")` is.
/// let policy = Policy::new("tenants", Quota::requests(5).per_second()).key("x-tenant");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key extractor",
    label = "not a key extractor",
    note = "those of `tollgate::extract` are: `extract::header(\"x-api-key\")`, `extract::peer()` and others, tuples of two \
            to four of them, and closures by `extract::from_fn(|parts| ..)`"
)]
pub trait KeyExtractor: fmt::Debug + Send + Sync + 'static {
    /// Returns the key of a request, or that it has none, or several.
    fn extract(&self, parts: &Parts) -> Extracted;

    /// Returns the key of a request that has these texts where the extractor looks for them: for
    /// [`PolicyHandle::key`](crate::limiter::PolicyHandle::key). Most extractors take one text; a tuple takes one for each of its parts;
    /// [`or_else`](KeyExtractor::or_else) takes the number of one of its extractors, `"1"` for the first, and that extractor's
    /// texts; [`global`](super::global) takes none.
    ///
    /// `None` for invalid texts, and for extractors whose keys are made by code of the application:
    /// [`extension`](super::extension), [`from_fn`](super::from_fn), and by default your own.
    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let _ = texts;
        None
    }

    /// Returns the key if it is the same for all requests, as for [`global`](super::global) and tuples of nothing else: a call
    /// of a [`Limiter`](crate::Limiter) with one key for all policies then uses this key. Default: `None`.
    fn fixed_key(&self) -> Option<Key> {
        None
    }

    /// What happens to a request without a key, unless [`Policy::missing_key`](crate::Policy::missing_key) is set. Default:
    /// [`MissingKey::Reject`].
    fn on_missing_key(&self) -> MissingKey {
        MissingKey::Reject
    }

    /// The name of the key in the response to a request that lacks it, after "The request lacks": "the header x-api-key".
    /// Default: "a key for this limit".
    ///
    /// `parts` is the request's head, which a call by hand may not have.
    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let _ = parts;
        Cow::Borrowed(field::A_KEY)
    }

    /// The remedy, if a missing key is a mistake in the application: it is logged as an error. Default: empty, for keys that a
    /// client may omit.
    fn missing_key_hint(&self) -> &'static str {
        ""
    }

    /// Returns the text that stands for the extractor in a configuration document, such as `"header:x-tenant | peer"`.
    ///
    /// It holds every setting that keys depend on, without secrets: of two policies whose extractors have the same text, the keys
    /// are taken for the same. Default: `None`, for code that no document describes; it is equal to itself alone.
    fn config_text(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Validates the extractor's settings, when a limiter is built. Default: `Ok`.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] if it can't find keys, such as for an invalid header name. It becomes the limiter's
    /// [`ConfigError`](crate::ConfigError).
    fn validate(&self) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Uses `other` for requests in which this extractor finds no key. A request in which neither finds one is handled as
    /// `other` does. A request that is [ambiguous](Extracted::Ambiguous) for an extractor that is asked is rejected.
    ///
    /// For two kinds of callers. For one credential that may be in either of two places, use
    /// [`or_same`](KeyExtractor::or_same), since here a caller has a bucket for each, and so twice the quota.
    ///
    /// The two never share a bucket: the key is [`Key::tuple`] of `Key::new("1")` and this extractor's key, or of
    /// `Key::new("2")` and that of `other`; a third extractor has `"3"`.
    ///
    /// ```
    /// use tollgate::{Key, KeyExtractor, extract::{self, PeerAddr}};
    ///
    /// let by_key_or_address = extract::header("x-api-key").or_else(extract::peer());
    ///
    /// let request = || http::Request::get("/").extension(PeerAddr("192.0.2.1:80".parse().unwrap()));
    /// let key_of = |request: http::request::Builder| {
    ///     by_key_or_address.extract(&request.body(()).unwrap().into_parts().0).key().unwrap()
    /// };
    /// let named = key_of(request().header("x-api-key", "sk_1"));
    /// assert_eq!(named, Key::tuple([Key::new("1"), Key::secret("sk_1")]));
    /// let address = Key::ip([192, 0, 2, 1].into());
    /// assert_eq!(key_of(request()), Key::tuple([Key::new("2"), address]));
    /// ```
    fn or_else(self, other: impl KeyExtractor) -> OrElse
    where
        Self: Sized,
    {
        OrElse::new(self, other)
    }

    /// Uses `other` for requests in which this extractor finds no key, with one bucket for both: for one credential that may be
    /// in either of two places. A request in which neither finds one is handled as `other` does; one that is
    /// [ambiguous](Extracted::Ambiguous) for an extractor that is asked is rejected.
    ///
    /// Both have to make the same key of the same credential: either both hash it or neither does. A request with both is
    /// counted by the key of the first, so the application has to authenticate by the same one.
    ///
    /// ```
    /// use tollgate::{Key, KeyExtractor, extract};
    ///
    /// let by_api_key = extract::header("x-api-key").or_same(extract::bearer());
    ///
    /// let key_of = |name: &str, value: &str| {
    ///     let request = http::Request::get("/").header(name, value).body(()).unwrap();
    ///     by_api_key.extract(&request.into_parts().0).key()
    /// };
    /// assert_eq!(key_of("x-api-key", "sk_1"), Some(Key::secret("sk_1")));
    /// assert_eq!(key_of("authorization", "Bearer sk_1"), Some(Key::secret("sk_1")));
    /// ```
    fn or_same<E: KeyExtractor>(self, other: E) -> OrSame<Self, E>
    where
        Self: Sized,
    {
        OrSame {
            first: self,
            second: other,
        }
    }
}

/// The methods of an extractor that asks another one, all but `config_text`.
macro_rules! delegate_to {
    ($own:ident => $other:expr) => {
        fn extract(&$own, parts: &http::request::Parts) -> $crate::extract::Extracted {
            $other.extract(parts)
        }

        fn key_from_text(&$own, texts: &[&str]) -> Option<$crate::key::Key> {
            $other.key_from_text(texts)
        }

        fn fixed_key(&$own) -> Option<$crate::key::Key> {
            $other.fixed_key()
        }

        fn on_missing_key(&$own) -> $crate::extract::MissingKey {
            $other.on_missing_key()
        }

        fn missing_key_name(
            &$own,
            parts: Option<&http::request::Parts>,
        ) -> std::borrow::Cow<'static, str> {
            $other.missing_key_name(parts)
        }

        fn missing_key_hint(&$own) -> &'static str {
            $other.missing_key_hint()
        }

        fn validate(&$own) -> Result<(), $crate::error::InvalidValue> {
            $other.validate()
        }
    };
}

#[cfg(feature = "config")]
pub(crate) use delegate_to;

impl KeyExtractor for Arc<dyn KeyExtractor> {
    delegate_to!(self => (**self));

    fn config_text(&self) -> Option<Cow<'_, str>> {
        (**self).config_text()
    }
}

/// An extractor of the first key that one of several extractors finds: from [`KeyExtractor::or_else`].
#[derive(Clone)]
pub struct OrElse {
    /// Each after its number, the first part of its keys, which keeps them apart from the others'.
    extractors: Vec<(Key, Arc<dyn KeyExtractor>)>,
}

impl OrElse {
    pub(crate) fn new(first: impl KeyExtractor, second: impl KeyExtractor) -> Self {
        let extractors = Vec::new();
        Self { extractors }.or_else(first).or_else(second)
    }

    /// Uses `next` for requests in which the previous extractors find no key.
    #[must_use]
    pub fn or_else(mut self, next: impl KeyExtractor) -> Self {
        let number = Key::new((self.extractors.len() + 1).to_string());
        self.extractors.push((number, Arc::new(next)));
        self
    }

    fn last(&self) -> Option<&dyn KeyExtractor> {
        self.extractors.last().map(|(_, last)| &**last)
    }
}

impl KeyExtractor for OrElse {
    fn extract(&self, parts: &Parts) -> Extracted {
        let extractors = self.extractors.iter();
        let mut found = extractors.map(|(number, extractor)| {
            let found = extractor.extract(parts);
            found.map(|key| Key::tuple([*number, key]))
        });
        let found = found.find(|found| *found != Extracted::Absent);
        found.unwrap_or(Extracted::Absent)
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        // The number of the extractor, then the texts that it takes.
        let (number, texts) = texts.split_first()?;
        let number = Key::new(number);
        let mut extractors = self.extractors.iter();
        let (_, extractor) = extractors.find(|(own, _)| *own == number)?;
        Some(Key::tuple([number, extractor.key_from_text(texts)?]))
    }

    fn fixed_key(&self) -> Option<Key> {
        // The first always finds a key, so the others are never used.
        let (number, first) = self.extractors.first()?;
        Some(Key::tuple([*number, first.fixed_key()?]))
    }

    fn on_missing_key(&self) -> MissingKey {
        self.last()
            .map_or(MissingKey::Reject, KeyExtractor::on_missing_key)
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let extractors = self.extractors.iter().map(|(_, extractor)| &**extractor);
        missing_key_names(&extractors.collect::<Vec<_>>(), parts)
    }

    fn missing_key_hint(&self) -> &'static str {
        self.last().map_or("", KeyExtractor::missing_key_hint)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        let texts = self.extractors.iter();
        let texts = texts.map(|(_, extractor)| Some(text::alternative(extractor.config_text()?)));
        let texts: Vec<_> = texts.collect::<Option<_>>()?;
        Some(texts.join(" | ").into())
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        self.extractors
            .iter()
            .try_for_each(|(_, extractor)| extractor.validate())
    }
}

impl fmt::Debug for OrElse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extractors = self.extractors.iter().map(|(_, extractor)| extractor);
        f.write_str("OrElse")?;
        f.debug_list().entries(extractors).finish()
    }
}

/// What a request lacks that needs one of several keys: the one that it has more than once, or else any of them.
fn missing_key_names(extractors: &[&dyn KeyExtractor], parts: Option<&Parts>) -> Cow<'static, str> {
    let ambiguous = parts.and_then(|parts| {
        let mut extractors = extractors.iter();
        extractors.find(|one| one.extract(parts) == Extracted::Ambiguous)
    });
    if let Some(ambiguous) = ambiguous {
        return ambiguous.missing_key_name(parts);
    }
    let names = extractors.iter().map(|one| one.missing_key_name(parts));
    names.collect::<Vec<_>>().join(" or ").into()
}

/// An extractor of the key that the first of two extractors finds, in one bucket: from [`KeyExtractor::or_same`].
#[derive(Clone, Debug)]
pub struct OrSame<A, B> {
    first: A,
    second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for OrSame<A, B> {
    fn extract(&self, parts: &Parts) -> Extracted {
        let first = self.first.extract(parts);
        first.or_else(|| self.second.extract(parts))
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let first = self.first.key_from_text(texts);
        first.or_else(|| self.second.key_from_text(texts))
    }

    fn fixed_key(&self) -> Option<Key> {
        self.first.fixed_key()
    }

    fn on_missing_key(&self) -> MissingKey {
        self.second.on_missing_key()
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        missing_key_names(&[&self.first, &self.second], parts)
    }

    fn missing_key_hint(&self) -> &'static str {
        self.second.missing_key_hint()
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        let (first, second) = (self.first.config_text()?, self.second.config_text()?);
        Some(format!("same({first}, {second})").into())
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        self.first.validate()?;
        self.second.validate()
    }
}
