//! The trait of key extractors, and what combines two of them.

use std::{borrow::Cow, fmt, sync::Arc};

use http::request::Parts;

use super::field;
use crate::{error::InvalidValue, key::Key};

/// What to do with a request in which a policy finds no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The policy does not apply to it.
    Skip,
    /// It is rejected: 400 Bad Request.
    Reject,
    /// All such requests are counted together, under one key that no request can name.
    Shared,
}

/// Finds the key that a policy counts a request by.
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
    /// The key of a request; `None` if it has none.
    fn key(&self, parts: &Parts) -> Option<Key>;

    /// The key of a request that brings these texts where this extractor looks for them: for
    /// [`PolicyHandle::key`](crate::PolicyHandle::key). Most take one text; a tuple takes one for each of its parts;
    /// [`or_else`](KeyExtractor::or_else) takes the place of one of its extractors, `"1"` for the first, and the texts of that
    /// one; [`global`](super::global) takes none.
    ///
    /// `None` if they are no such texts, or keys are made by code of the application: by [`extension`](super::extension), [`from_fn`](super::from_fn), and an
    /// extractor of one's own unless it says otherwise.
    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        let _ = texts;
        None
    }

    /// The key of each request, if it's the same one whatever the request holds: [`global`](super::global)'s, and that of a tuple of such
    /// extractors. A call of a [`Limiter`](crate::Limiter) with one key for all policies counts by it in place of its own.
    /// `None` unless an extractor says otherwise.
    fn fixed_key(&self) -> Option<Key> {
        None
    }

    /// What to do with a request without a key, unless the policy says otherwise.
    fn on_missing_key(&self) -> MissingKey {
        MissingKey::Reject
    }

    /// What a request without a key lacks, in its client's words: "the header x-api-key". It stands in the response,
    /// after "The request lacks".
    ///
    /// `parts` is the request's head; there is none in a [`check`](crate::Limiter::check).
    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let _ = parts;
        Cow::Borrowed(field::A_KEY)
    }

    /// If a missing key is a mistake of the application's, what to do about it: it is logged as an error.
    fn missing_key_hint(&self) -> &'static str {
        ""
    }

    /// Called when a limiter is built.
    ///
    /// # Errors
    ///
    /// If it can't find keys, such as by a header whose name is none.
    fn validate(&self) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Uses `other` where this finds no key. What else is done with a request without a key is as `other` has it.
    ///
    /// For two kinds of caller. For one credential that may be in either of two places use
    /// [`or_same`](KeyExtractor::or_same): here a caller would have a bucket for each, and so twice the quota.
    ///
    /// The two never share a bucket, whatever they find: the key is [`Key::tuple`] of `Key::new("1")` and this one's
    /// key, or of `Key::new("2")` and `other`'s; a third's has a `"3"`.
    ///
    /// ```
    /// use tollgate::{Key, PeerAddr, extract::{self, KeyExtractor}};
    ///
    /// let by_key_or_address = extract::header("x-api-key").or_else(extract::peer());
    ///
    /// let request = || http::Request::get("/").extension(PeerAddr("192.0.2.1:80".parse().unwrap()));
    /// let key_of = |request: http::request::Builder| {
    ///     by_key_or_address.key(&request.body(()).unwrap().into_parts().0).unwrap()
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

    /// Uses `other` where this finds no key, for one credential that may be in either of two places: both have one bucket. What
    /// else is done with a request without a key is as `other` has it.
    ///
    /// The key is the one that was found, so both have to make the same key of the same credential: two that hash it, or two
    /// that don't. A request that brings both is counted by this one's alone, so let the application authenticate by the
    /// same.
    ///
    /// ```
    /// use tollgate::{Key, extract::{self, KeyExtractor}};
    ///
    /// let by_api_key = extract::header("x-api-key").or_same(extract::bearer());
    ///
    /// let key_of = |name: &str, value: &str| {
    ///     let request = http::Request::get("/").header(name, value).body(()).unwrap();
    ///     by_api_key.key(&request.into_parts().0)
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

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn key(&self, parts: &Parts) -> Option<Key> {
        (**self).key(parts)
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        (**self).key_from_text(texts)
    }

    fn fixed_key(&self) -> Option<Key> {
        (**self).fixed_key()
    }

    fn on_missing_key(&self) -> MissingKey {
        (**self).on_missing_key()
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        (**self).missing_key_name(parts)
    }

    fn missing_key_hint(&self) -> &'static str {
        (**self).missing_key_hint()
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        (**self).validate()
    }
}

/// The first key that one of several extractors finds: see [`KeyExtractor::or_else`].
#[derive(Clone)]
pub struct OrElse {
    /// Each with what sets its keys apart from the others'.
    extractors: Vec<(Key, Arc<dyn KeyExtractor>)>,
}

impl OrElse {
    pub(crate) fn new(first: impl KeyExtractor, second: impl KeyExtractor) -> Self {
        let extractors = Vec::new();
        Self { extractors }.or_else(first).or_else(second)
    }

    /// Uses `next` where all so far have found no key.
    #[must_use]
    pub fn or_else(mut self, next: impl KeyExtractor) -> Self {
        let place = Key::new((self.extractors.len() + 1).to_string());
        self.extractors.push((place, Arc::new(next)));
        self
    }

    fn last(&self) -> Option<&dyn KeyExtractor> {
        self.extractors.last().map(|(_, last)| &**last)
    }
}

impl KeyExtractor for OrElse {
    fn key(&self, parts: &Parts) -> Option<Key> {
        self.extractors.iter().find_map(|(place, extractor)| {
            let key = extractor.key(parts)?;
            Some(Key::tuple([*place, key]))
        })
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        // The place of the extractor, as in its keys, then what that one takes.
        let (place, texts) = texts.split_first()?;
        let place = Key::new(place);
        let mut extractors = self.extractors.iter();
        let (_, extractor) = extractors.find(|(own, _)| *own == place)?;
        Some(Key::tuple([place, extractor.key_from_text(texts)?]))
    }

    fn fixed_key(&self) -> Option<Key> {
        // The others are asked only where the first finds no key.
        let (place, first) = self.extractors.first()?;
        Some(Key::tuple([*place, first.fixed_key()?]))
    }

    fn on_missing_key(&self) -> MissingKey {
        self.last()
            .map_or(MissingKey::Reject, KeyExtractor::on_missing_key)
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        let extractors = self.extractors.iter().map(|(_, extractor)| extractor);
        let names: Vec<_> = extractors.map(|one| one.missing_key_name(parts)).collect();
        names.join(" or ").into()
    }

    fn missing_key_hint(&self) -> &'static str {
        self.last().map_or("", KeyExtractor::missing_key_hint)
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

/// The key that the first of two extractors finds, in one bucket: see [`KeyExtractor::or_same`].
#[derive(Clone, Debug)]
pub struct OrSame<A, B> {
    first: A,
    second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for OrSame<A, B> {
    fn key(&self, parts: &Parts) -> Option<Key> {
        self.first.key(parts).or_else(|| self.second.key(parts))
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
        let (first, second) = (&self.first, &self.second);
        let names = [
            first.missing_key_name(parts),
            second.missing_key_name(parts),
        ];
        names.join(" or ").into()
    }

    fn missing_key_hint(&self) -> &'static str {
        self.second.missing_key_hint()
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        self.first.validate()?;
        self.second.validate()
    }
}
