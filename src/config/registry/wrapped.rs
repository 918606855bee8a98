//! Registered extractors and strategies, which a document has by their names.

use std::{borrow::Cow, sync::Arc};

use http::request::Parts;

use crate::{
    Key, Quota,
    error::InvalidValue,
    extract::{Extracted, KeyExtractor, MissingKey},
    strategy::{Rule, Strategy, Terms},
};

/// An extractor that a document has by its name.
#[derive(Debug)]
pub(super) struct RegisteredKey<E> {
    name: Cow<'static, str>,
    extractor: E,
}

/// A strategy that a document has by its name.
#[derive(Debug)]
pub(super) struct RegisteredStrategy<S> {
    name: Cow<'static, str>,
    strategy: S,
}

impl<E> RegisteredKey<E> {
    pub(super) fn new(name: Cow<'static, str>, extractor: E) -> Self {
        Self { name, extractor }
    }
}

impl<S> RegisteredStrategy<S> {
    pub(super) fn new(name: Cow<'static, str>, strategy: S) -> Self {
        Self { name, strategy }
    }
}

impl<E: KeyExtractor> KeyExtractor for RegisteredKey<E> {
    fn extract(&self, parts: &Parts) -> Extracted {
        self.extractor.extract(parts)
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        self.extractor.key_from_text(texts)
    }

    fn fixed_key(&self) -> Option<Key> {
        self.extractor.fixed_key()
    }

    fn on_missing_key(&self) -> MissingKey {
        self.extractor.on_missing_key()
    }

    fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
        self.extractor.missing_key_name(parts)
    }

    fn missing_key_hint(&self) -> &'static str {
        self.extractor.missing_key_hint()
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some((&*self.name).into())
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        self.extractor.validate()
    }
}

impl<S: Strategy> Strategy for RegisteredStrategy<S> {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        self.strategy.bind(quota, terms)
    }

    fn tiers_share_period(&self) -> bool {
        self.strategy.tiers_share_period()
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some((&*self.name).into())
    }
}
