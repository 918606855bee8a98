//! What configuration documents refer to.

use std::path::PathBuf;

/// What a document refers to, and does not contain: code of the application, or the value of a secret.
///
/// ```
/// use tollgate::config::{Document, Format, Reference, Registry};
///
/// let text = "
/// [policies.api]
/// quota = '100/min'
/// key = 'user'
/// ";
/// let error = Document::parse(text, Format::Toml)?.limiter(&Registry::new()).unwrap_err();
/// let user = Reference::Code { kind: "key", name: "user".to_owned() };
/// assert_eq!(error.mistakes()[0].unresolved(), Some(&user));
/// # Ok::<(), tollgate::config::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reference {
    /// Code that the application registers in its [`Registry`](crate::config::Registry).
    Code {
        /// The kind of code: the name of the method of `Registry`, such as `key` or `cost`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A variable of the environment.
    Variable(String),
    /// The file of a secret.
    SecretFile(PathBuf),
}
