//! Secrets: values that come from the environment or from files, and are never displayed.

use std::{
    env::{self, VarError},
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    error::{InvalidValue, Reference},
    file::{MAX_TEXT_BYTES, read_text},
};

/// A value that is not displayed: a URL with a password, a hash key, a private key.
///
/// It is text in which `${NAME}` is the value of the environment's variable `NAME` and `$$` is `$`, or `{ file = "path" }`, the
/// content of a file of at most 1 MiB, without the line breaks at its end. A relative path is relative to the document's folder.
/// `${NAME:-text}` is the text if the variable is not set or empty.
///
/// A password in a URL, a hash key and a private key are variables, or in files: as text, also as that of a default, they are a
/// mistake of the document, whose text is shown to operators.
///
/// `Debug` and errors show where the value is from, and never the value: the path of the file, a text that consists of variables, or
/// `***` in place of another text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Source);

#[derive(Clone, PartialEq, Eq)]
enum Source {
    Text(String),
    File(PathBuf),
}

impl Secret {
    /// A secret from text, in which `${NAME}` is the value of a variable of the environment.
    pub fn text(text: impl Into<String>) -> Self {
        Self(Source::Text(text.into()))
    }

    /// A secret from a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// The value, if it can be read. The error does not show it.
    pub(crate) fn value(&self, folder: &Path) -> Result<String, InvalidValue> {
        match &self.0 {
            Source::Text(text) => expand(text),
            Source::File(path) => {
                let path = folder.join(path);
                let text = read_text(&path, MAX_TEXT_BYTES).map_err(|error| {
                    let found =
                        format!("the file {}, which can't be read: {error}", path.display());
                    let unreadable = InvalidValue::new(found, "a file that can be read");
                    unreadable.unresolved(Reference::SecretFile(path.clone()))
                })?;
                Ok(text.trim_end_matches(['\n', '\r']).to_owned())
            }
        }
    }

    /// Whether it is text of its own, besides variables.
    pub(crate) fn has_text(&self) -> bool {
        matches!(&self.0, Source::Text(text) if has_text(text))
    }

    /// Whether it is a URL of Redis with a password of its own, rather than one that is a variable: before the `@`, also where
    /// that has no user, or in the query of a socket's URL.
    pub(crate) fn has_password(&self) -> bool {
        let Source::Text(text) = &self.0 else {
            return false;
        };
        let literal = literal(text).unwrap_or_default();
        let scheme = literal.split(':').next().unwrap_or_default();
        if scheme.to_ascii_lowercase().ends_with("unix") {
            let query = literal.split_once('?').map_or("", |(_, query)| query);
            return query.split('&').any(|pair| {
                let value = pair.strip_prefix("pass=");
                value.is_some_and(|value| !value.is_empty())
            });
        }
        let rest = literal
            .split_once("://")
            .map_or(&*literal, |(_, rest)| rest);
        let user_info = rest.rsplit_once('@').map_or("", |(user_info, _)| user_info);
        let password = user_info.split_once(':');
        let password = password.map_or(user_info, |(_, password)| password);
        !password.is_empty()
    }

    /// The path of its file, if it is in one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.0 {
            Source::Text(_) => None,
            Source::File(path) => Some(path),
        }
    }
}

/// A variable of the environment: `${NAME}` or `${NAME:-default}`.
#[derive(Clone, Copy)]
struct Variable<'a> {
    name: &'a str,
    default: Option<&'a str>,
}

/// The text with each variable replaced by its value, and each `$$` by `$`.
pub(crate) fn expand(text: &str) -> Result<String, InvalidValue> {
    replaced(text, |variable| variable.value())
}

/// The text with each variable replaced by a value, and each `$$` by `$`.
fn replaced(
    text: &str,
    value: impl Fn(Variable<'_>) -> Result<String, InvalidValue>,
) -> Result<String, InvalidValue> {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        replaced.push_str(before);
        rest = match after.strip_prefix('$') {
            Some(after) => {
                replaced.push('$');
                after
            }
            None => {
                let (variable, after) = Variable::at(after).ok_or_else(|| {
                    let found = "a $ that is not followed by the name of a variable in braces";
                    InvalidValue::new(found, "\"${NAME}\", or \"$$\" for a $")
                })?;
                replaced.push_str(&value(variable)?);
                after
            }
        };
    }
    replaced.push_str(rest);
    Ok(replaced)
}

/// Whether a text has anything of its own, besides variables.
pub(crate) fn has_text(text: &str) -> bool {
    literal(text).is_none_or(|literal| !literal.is_empty())
}

/// What a text holds itself: without its variables, but with their defaults. `None` if a `$` begins no variable.
fn literal(text: &str) -> Option<String> {
    let default = |variable: Variable<'_>| Ok(variable.default.unwrap_or_default().to_owned());
    replaced(text, default).ok()
}

impl<'a> Variable<'a> {
    /// The variable whose `$` is followed by this text, and what follows the variable.
    fn at(text: &'a str) -> Option<(Self, &'a str)> {
        let (text, after) = text.strip_prefix('{')?.split_once('}')?;
        let (name, default) = match text.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (text, None),
        };
        let is_name = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then_some((Self { name, default }, after))
    }

    fn value(self) -> Result<String, InvalidValue> {
        let Self { name, default } = self;
        match (env::var(name), default) {
            (Ok(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
            (Ok(value), _) => Ok(value),
            (Err(VarError::NotPresent), Some(default)) => Ok(default.to_owned()),
            (Err(error), _) => {
                let found = match error {
                    VarError::NotPresent => "a variable that is not set",
                    VarError::NotUnicode(_) => "a variable that is not Unicode",
                };
                let unset = InvalidValue::new(
                    format!("${{{name}}}, {found}"),
                    format!("the variable {name} in the environment"),
                );
                Err(unset.unresolved(Reference::Variable(name.to_owned())))
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Text(text) if has_text(text) => f.write_str("Secret(***)"),
            Source::Text(text) => write!(f, "Secret({text})"),
            Source::File(path) => write!(f, "Secret(file {})", path.display()),
        }
    }
}

/// How a secret in a file is written.
#[derive(Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct FileSource {
    /// The file's path. A relative path is relative to the document's folder.
    file: PathBuf,
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

struct SecretVisitor;

impl SecretVisitor {
    /// The error of a number, which may be a secret without its quotes.
    fn found_number<E: serde::de::Error>(&self) -> E {
        E::invalid_type(serde::de::Unexpected::Other("a number"), self)
    }
}

impl<'de> serde::de::Visitor<'de> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text such as \"${NAME}\", or { file = \"path\" }")
    }

    fn visit_str<E>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::text(text))
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Secret, E> {
        Err(self.found_number())
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Secret, E> {
        Err(self.found_number())
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Secret, E> {
        Err(self.found_number())
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Secret, A::Error> {
        let source = FileSource::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
        Ok(Secret::file(source.file))
    }
}

#[cfg(feature = "config-schema")]
impl schemars::JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let file = generator.subschema_for::<FileSource>();
        schemars::json_schema!({
            "description": "A secret: text in which ${NAME} is a variable of the environment, or the content of a file.",
            "anyOf": [{ "type": "string" }, file]
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn text_takes_variables_of_the_environment() {
        let manifest = env!("CARGO_PKG_NAME");
        let value = |text| Secret::text(text).value(Path::new(""));
        assert_eq!(
            value("a${CARGO_PKG_NAME}b$$c"),
            Ok(format!("a{manifest}b$c"))
        );
        assert_eq!(value("${CARGO_PKG_NAME:-x}"), Ok(manifest.to_owned()));
        assert_eq!(
            value("a${NO_SUCH_VARIABLE:-b:-c}d"),
            Ok("ab:-cd".to_owned())
        );
        assert_eq!(value("${NO_SUCH_VARIABLE:-}"), Ok(String::new()));
        for text in ["$", "${", "${}", "$NAME", "${A-B}", "${NO_SUCH_VARIABLE}"] {
            assert!(value(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_found_wherever_a_url_has_it() {
        for (text, expected) in [
            ("${REDIS_URL}", false),
            ("${REDIS_URL:-memory://}", false),
            ("redis://${HOST:-localhost}:6379/0?protocol=resp3", false),
            ("redis://[::1]:6379", false),
            ("redis://user:${PASSWORD}@host", false),
            ("redis://${USER:-app}:${PASSWORD}@host", false),
            ("redis://${USER_INFO}@host", false),
            (
                "unix:///run/redis@1.sock?user=app&pass=${PASSWORD}&db=1",
                false,
            ),
            ("redis://user:hunter2@host", true),
            ("redis://:hunter2@host", true),
            ("redis://hunter2@host", true),
            ("rediss://user:hun/ter@2@host", true),
            ("redis://user:hunter${REST}@host", true),
            ("redis://user:${PASSWORD:-hunter2}@host", true),
            ("${REDIS_URL:-redis://:hunter2@localhost}", true),
            ("user:hunter2@host:6379", true),
            ("redis+unix:///run/redis.sock?pass=hunter2", true),
            ("unix:/run/redis.sock?db=1&pass=hunter2", true),
            ("UNIX:///run/redis.sock?pass=hunter2", true),
        ] {
            assert_eq!(Secret::text(text).has_password(), expected, "{text}");
        }
        assert!(!Secret::file("redis://:hunter2@host").has_password());
    }

    #[test]
    fn a_file_is_read_up_to_a_bound_without_the_line_breaks_at_its_end() {
        let folder = testkit::folder();
        let value = |name: &str| Secret::file(name).value(folder.path());
        fs::write(folder.path().join("password"), "hunter2\r\n\n").expect("a file");
        assert_eq!(value("password"), Ok("hunter2".to_owned()));
        fs::write(folder.path().join("long"), vec![b'a'; (1 << 20) + 1]).expect("a file");
        for (name, problem) in [
            ("long", "it is longer than 1048576 bytes"),
            ("/dev/null", "it is not a regular file"),
            ("none", "No such file or directory (os error 2)"),
        ] {
            let path = folder.path().join(name);
            let found = format!(
                "the file {}, which can't be read: {problem}",
                path.display()
            );
            let expected = InvalidValue::new(found, "a file that can be read");
            let file = Reference::SecretFile(path);
            assert_eq!(value(name), Err(expected.unresolved(file)));
        }
    }
}
