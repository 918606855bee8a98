//! One credential in either of two places.

use std::borrow::Cow;

use http::request::Parts;

use super::{KeyExtractor, MissingKey};
use crate::{error::InvalidValue, key::Key};

/// The key that the first of two extractors finds, in one bucket: see [`KeyExtractor::or_same`].
#[derive(Clone, Debug)]
pub struct OrSame<A, B> {
    pub(super) first: A,
    pub(super) second: B,
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
