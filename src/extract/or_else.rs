use std::{borrow::Cow, fmt, sync::Arc};

use http::request::Parts;

use super::{KeyExtractor, MissingKey};
use crate::{error::InvalidValue, key::Key};

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
