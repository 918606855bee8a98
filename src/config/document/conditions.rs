use serde::{Deserialize, Serialize};

/// Requests: by their path, by their method, and by registered functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ConditionsSection {
    /// Paths such as `/health`, or with `/*` at their end all paths beneath them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Methods such as `OPTIONS`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Names of registered functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<String>,
}

impl ConditionsSection {
    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.methods.is_empty() && self.with.is_empty()
    }
}
