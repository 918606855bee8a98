use std::{fmt, marker::PhantomData};

use serde::de::{Deserialize, Deserializer, Visitor};

/// The name of a type that marks a value as a secret for the deserializer of trees.
pub(super) const SECRET: &str = "tollgate::config::Secret";

/// Reads a field that holds secrets. Errors don't show what stands there in place of them: a secret in the wrong form is a
/// secret still.
pub(crate) fn secret<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct SecretVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for SecretVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a secret")
        }

        fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<T, D::Error> {
            T::deserialize(value)
        }
    }

    deserializer.deserialize_newtype_struct(SECRET, SecretVisitor(PhantomData))
}
