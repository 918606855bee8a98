use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, Unexpected},
};

/// Requests: by their path, by their method, and by registered functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ConditionsSection {
    /// Paths such as `/health`, or with `/*` at their end all paths beneath them.
    #[serde(deserialize_with = "entries", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "config-schema", schemars(length(min = 1)))]
    pub paths: Vec<String>,
    /// Methods such as `OPTIONS`.
    #[serde(deserialize_with = "entries", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "config-schema", schemars(length(min = 1)))]
    pub methods: Vec<String>,
    /// Names of registered functions.
    #[serde(deserialize_with = "entries", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "config-schema", schemars(length(min = 1)))]
    pub with: Vec<String>,
}

impl ConditionsSection {
    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.methods.is_empty() && self.with.is_empty()
    }
}

/// Reads conditions that a document sets. An empty table would mean all requests, under `only` too.
pub(super) fn conditions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ConditionsSection, D::Error> {
    let section = ConditionsSection::deserialize(deserializer)?;
    match section.is_empty() {
        true => Err(D::Error::invalid_value(
            Unexpected::Other("an empty table"),
            &"paths, methods or with, or none of the field",
        )),
        false => Ok(section),
    }
}

fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let entries = Vec::deserialize(deserializer)?;
    match entries.is_empty() {
        true => Err(D::Error::invalid_value(
            Unexpected::Other("an empty array"),
            &"at least one entry, or none of the field",
        )),
        false => Ok(entries),
    }
}
