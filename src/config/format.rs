/// The format of a document's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// TOML 1.1.
    Toml,
    /// YAML 1.2, without merge keys and without tags but `!!str`.
    #[cfg(feature = "config-yaml")]
    Yaml,
    /// JSON.
    #[cfg(feature = "config-json")]
    Json,
}

impl Format {
    /// The format of a file by its extension: `.toml`, `.yaml` or `.yml`, `.json`. An error says what is expected.
    pub(crate) fn of(file: &std::path::Path) -> Result<Self, &'static str> {
        let extension = file.extension().and_then(|extension| extension.to_str());
        match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("toml") => Ok(Self::Toml),
            #[cfg(feature = "config-yaml")]
            Some("yaml" | "yml") => Ok(Self::Yaml),
            #[cfg(not(feature = "config-yaml"))]
            Some("yaml" | "yml") => Err("the feature `config-yaml` of tollgate, for YAML"),
            #[cfg(feature = "config-json")]
            Some("json") => Ok(Self::Json),
            #[cfg(not(feature = "config-json"))]
            Some("json") => Err("the feature `config-json` of tollgate, for JSON"),
            _ => Err("one of .toml, .yaml, .yml and .json"),
        }
    }
}
