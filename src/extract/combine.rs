use std::fmt;

use http::request::Parts;

use super::{KeyExtractor, MissingKey};
use crate::{error::InvalidValue, key::Key, log::Seldom};

/// Counts by what a closure finds in a request's head; `None` if the request has no key.
///
/// ```
/// use tollgate::{Key, Policy, Quota, extract};
///
/// #[derive(Clone)]
/// struct User(u64);
///
/// // What an authentication middleware left behind.
/// let by_user = extract::from_fn(|parts| {
///     let User(id) = parts.extensions.get()?;
///     Some(Key::new(id.to_string()))
/// });
/// let policy = Policy::new("users", Quota::requests(100).per_minute()).key(by_user);
/// ```
pub fn from_fn<F>(find: F) -> FromFn<F>
where
    F: Fn(&Parts) -> Option<Key> + Send + Sync + 'static,
{
    FromFn(find)
}

/// See [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

impl<F> KeyExtractor for FromFn<F>
where
    F: Fn(&Parts) -> Option<Key> + Send + Sync + 'static,
{
    fn key(&self, parts: &Parts) -> Option<Key> {
        (self.0)(parts)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn(..)")
    }
}

/// The key of a tuple's part. Where a part by itself would share one bucket among those who have no key, so does it
/// within a tuple.
fn part_of(part: &impl KeyExtractor, parts: &Parts) -> Option<Key> {
    static SELDOM: Seldom = Seldom::new();
    part.key(parts).or_else(|| {
        let hint = part.missing_key_hint();
        if !hint.is_empty() {
            SELDOM.then(|unsaid| tracing::error!(unsaid, "a request has no key: {hint}"));
        }
        (part.on_missing_key() == MissingKey::Shared).then(Key::missing)
    })
}

macro_rules! tuple {
    ($($part:ident $index:tt),+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            fn key(&self, parts: &Parts) -> Option<Key> {
                Some(Key::tuple([$(part_of(&self.$index, parts)?),+]))
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
