//! Values by name, in the order of the text.

use std::{collections::HashMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};

/// Values by name, in the order of the text.
///
/// ```
/// use tollgate::settings::{Named, PolicySettings};
///
/// let mut policies = Named::default();
/// policies.insert("api", PolicySettings::new("100/min".parse()?));
/// assert_eq!(policies.get("api").unwrap().quota, Some("100/min".parse()?));
/// # Ok::<(), tollgate::error::ParseQuotaError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Named<T> {
    values: Vec<(String, T)>,
    /// The index of each value.
    indices: HashMap<String, usize>,
}

impl<T> Named<T> {
    /// Adds a value, or replaces the one of that name.
    pub fn insert(&mut self, name: impl Into<String>, value: T) {
        let name = name.into();
        match self.get_mut(&name) {
            Some(old) => *old = value,
            None => {
                self.indices.insert(name.clone(), self.values.len());
                self.values.push((name, value));
            }
        }
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&T> {
        let (_, value) = self.values.get(*self.indices.get(name)?)?;
        Some(value)
    }

    /// The value of that name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        let (_, value) = self.values.get_mut(*self.indices.get(name)?)?;
        Some(value)
    }

    /// Removes the value of that name, and returns it.
    pub fn remove(&mut self, name: &str) -> Option<T> {
        let removed = self.indices.remove(name)?;
        for index in self.indices.values_mut() {
            *index -= usize::from(*index > removed);
        }
        Some(self.values.remove(removed).1)
    }

    /// The names and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.values.iter().map(|(name, value)| (&**name, value))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            indices: HashMap::new(),
        }
    }
}

impl<N: Into<String>, T> FromIterator<(N, T)> for Named<T> {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(values: I) -> Self {
        let mut named = Self::default();
        for (name, value) in values {
            named.insert(name, value);
        }
        named
    }
}

impl<T: fmt::Debug> fmt::Debug for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
                let mut named = Named::default();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    named.insert(name, value);
                }
                Ok(named)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(feature = "config-schema")]
impl<T: schemars::JsonSchema> schemars::JsonSchema for Named<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}ByName", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let values = generator.subschema_for::<T>();
        schemars::json_schema!({ "type": "object", "additionalProperties": values })
    }
}
