//! All mistakes of a document that can't be read as a whole.

use std::path::Path;

use super::Build;
use crate::config::{
    content,
    document::Document,
    error::{LoadError, Mistake},
    registry::Registry,
};

impl Document {
    /// Reads a document from a file, as [`load`](Self::load) does, for a layer or a limiter with the code of `registry`: an
    /// error has the mistakes of building one, too.
    ///
    /// ```no_run
    /// use tollgate::config::{Document, Registry};
    ///
    /// let registry = Registry::new().cost("pages", |_| 2);
    /// let layer = Document::load_with("limits.toml", &registry)?.layer(&registry)?;
    /// # Ok::<(), tollgate::config::LoadError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load). If there are any, those of [`layer`](Self::layer) are among its mistakes, as far as they
    /// don't follow from these.
    pub fn load_with(path: impl AsRef<Path>, registry: &Registry) -> Result<Self, LoadError> {
        let path = path.as_ref();
        Self::parse_file_with(&content::read(path)?, path, registry)
    }

    /// Reads a document from the text of a file.
    pub(crate) fn parse_file_with(
        text: &str,
        path: &Path,
        registry: &Registry,
    ) -> Result<Self, LoadError> {
        let (document, mut mistakes) = Self::read_file(text, path);
        if let Some(document) = document {
            if mistakes.is_empty() {
                return Ok(document);
            }
            let mut build = Build::new(&document, registry);
            let store = build.store();
            drop(build.limiter::<()>(store));
            drop(build.layer());
            let lacks_policy = mistakes.iter().any(is_whole_policy);
            build.mistakes.retain(|mistake| {
                let is_known = |known: &Mistake| {
                    known.is_within(mistake.path()) || mistake.is_within(known.path())
                };
                let names_policy = [".policy", ".shadow_of"]
                    .iter()
                    .any(|end| mistake.path().ends_with(end));
                !(mistakes.iter().any(is_known) || lacks_policy && names_policy)
            });
            mistakes.append(&mut build.mistakes);
        }
        Err(LoadError::new(Some(path), mistakes))
    }
}

/// Whether it is a mistake of a policy as a whole, which others may name.
fn is_whole_policy(mistake: &Mistake) -> bool {
    let name = mistake.path().strip_prefix("policies.");
    mistake.path() == "policies"
        || name.is_some_and(|name| name.starts_with('"') || !name.contains('.'))
}
