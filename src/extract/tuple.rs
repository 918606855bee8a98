//! Tuples of extractors, and the keys of their parts.

use std::borrow::Cow;

use http::request::Parts;

use super::{Extracted, KeyExtractor, MissingKey, field};
use crate::{error::InvalidValue, key::Key, log::LogThrottle};

/// The key of a tuple's part. A part that counts all requests without a key in one bucket does so within a tuple too.
fn extract_part(part: &impl KeyExtractor, parts: &Parts) -> Extracted {
    static LOG: LogThrottle = LogThrottle::new();
    part.extract(parts).or_else(|| {
        let hint = part.missing_key_hint();
        if !hint.is_empty() {
            LOG.log_with(|suppressed| tracing::error!(suppressed, "a request has no key: {hint}"));
        }
        (part.on_missing_key() == MissingKey::Shared)
            .then(Key::missing)
            .into()
    })
}

/// The key of all parts. One that is ambiguous makes the tuple ambiguous, also if another one is absent.
fn combine<const N: usize>(found: [Extracted; N]) -> Extracted {
    if found.contains(&Extracted::Ambiguous) {
        return Extracted::Ambiguous;
    }
    if found.contains(&Extracted::Absent) {
        return Extracted::Absent;
    }
    Key::tuple(found.into_iter().filter_map(Extracted::key)).into()
}

/// The name of a tuple's part, if a request must have it and lacks it; without a request, if it must have it.
fn missing_part_name(part: &impl KeyExtractor, parts: Option<&Parts>) -> Option<Cow<'static, str>> {
    let missing = match parts.map_or(Extracted::Absent, |parts| part.extract(parts)) {
        Extracted::Key(_) => false,
        Extracted::Absent => part.on_missing_key() != MissingKey::Shared,
        Extracted::Ambiguous => true,
    };
    missing.then(|| part.missing_key_name(parts))
}

macro_rules! tuple {
    ($($part:ident $index:tt),+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            fn extract(&self, parts: &Parts) -> Extracted {
                combine([$(extract_part(&self.$index, parts)),+])
            }

            fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
                let mut texts = texts.iter();
                let key = Key::tuple([$(self.$index.key_from_text(&[texts.next()?])?),+]);
                texts.next().is_none().then_some(key)
            }

            fn fixed_key(&self) -> Option<Key> {
                Some(Key::tuple([$(self.$index.fixed_key()?),+]))
            }

            fn config_text(&self) -> Option<Cow<'_, str>> {
                let parts = [$(self.$index.config_text()?),+];
                Some(format!("[{}]", parts.join(", ")).into())
            }

            fn missing_key_name(&self, parts: Option<&Parts>) -> Cow<'static, str> {
                let mut name = None;
                $(name = name.or_else(|| missing_part_name(&self.$index, parts));)+
                name.unwrap_or(Cow::Borrowed(field::A_KEY))
            }

            fn validate(&self) -> Result<(), InvalidValue> {
                $(self.$index.validate()?;)+
                Ok(())
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
