//! Secrets: values that come from the environment or from files, and are never displayed.

use std::{
    env::{self, VarError},
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// A value that is not displayed: a URL with a password, a hash key, a private key.
///
/// It is text in which `${NAME}` is the value of the environment's variable `NAME` and `$$` is `$`, or `{ file = "path" }`, the
/// content of a file without the line breaks at its end. A relative path is relative to the document's folder. `${NAME:-text}` is
/// the text if the variable is not set or empty.
///
/// `Debug`, errors and [`Document::to_text`](super::Document::to_text) show where the value is from, and never the value. In
/// text without `${NAME}` they show `***` in place of a URL's password, and of all text that is no URL. A document with `***`
/// in place of a secret can't be loaded.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Source);

#[derive(Clone, PartialEq, Eq)]
enum Source {
    Text(String),
    File(PathBuf),
}

/// What stands in place of a secret.
const HIDDEN: &str = "***";

impl Secret {
    /// A secret from text, in which `${NAME}` is the value of a variable of the environment.
    pub fn text(text: impl Into<String>) -> Self {
        Self(Source::Text(text.into()))
    }

    /// A secret from a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// The value. An error is what was found, and what is expected.
    #[allow(dead_code, reason = "for the store's secrets")]
    pub(crate) fn value(&self, folder: &Path) -> Result<String, (String, String)> {
        match &self.0 {
            Source::Text(text) if text.contains(HIDDEN) => Err((
                format!("{HIDDEN} in place of a secret"),
                "the secret itself, \"${NAME}\" for a variable of the environment, or { file = \"path\" }".to_owned(),
            )),
            Source::Text(text) => expand(text),
            Source::File(path) => {
                let path = folder.join(path);
                let text = fs::read_to_string(&path).map_err(|error| {
                    let found = format!("the file {}, which can't be read: {error}", path.display());
                    (found, "a file that can be read".to_owned())
                })?;
                Ok(text.trim_end_matches(['\n', '\r']).to_owned())
            }
        }
    }

    /// The path of its file, if it is in one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.0 {
            Source::Text(_) => None,
            Source::File(path) => Some(path),
        }
    }

    /// Where it is from: the text without secrets.
    fn shown(&self) -> String {
        match &self.0 {
            Source::Text(text) => shown(text),
            Source::File(path) => path.display().to_string(),
        }
    }
}

/// Text with the values of the environment's variables.
#[allow(dead_code, reason = "for the store's secrets")]
fn expand(text: &str) -> Result<String, (String, String)> {
    let mut value = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        value.push_str(before);
        rest = match after.strip_prefix('$') {
            Some(after) => {
                value.push('$');
                after
            }
            None => {
                let (variable, after) = Variable::at(after).ok_or_else(|| {
                    let found = "a $ that is not followed by the name of a variable in braces";
                    (
                        found.to_owned(),
                        "\"${NAME}\", or \"$$\" for a $".to_owned(),
                    )
                })?;
                value.push_str(&variable.value()?);
                after
            }
        };
    }
    value.push_str(rest);
    Ok(value)
}

/// A variable of the environment: `${NAME}` or `${NAME:-default}`.
struct Variable<'a> {
    name: &'a str,
    default: Option<&'a str>,
}

impl<'a> Variable<'a> {
    /// The variable whose `$` is followed by this text, and what follows the variable.
    fn at(text: &'a str) -> Option<(Self, &'a str)> {
        let (text, after) = text.strip_prefix('{')?.split_once('}')?;
        let (name, default) = match text.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (text, None),
        };
        is_name(name).then_some((Self { name, default }, after))
    }

    fn value(&self) -> Result<String, (String, String)> {
        let Self { name, default } = self;
        match (env::var(name), default) {
            (Ok(value), Some(default)) if value.is_empty() => Ok((*default).to_owned()),
            (Ok(value), _) => Ok(value),
            (Err(VarError::NotPresent), Some(default)) => Ok((*default).to_owned()),
            (Err(error), _) => {
                let found = match error {
                    VarError::NotPresent => "a variable that is not set",
                    VarError::NotUnicode(_) => "a variable that is not Unicode",
                };
                let found = format!("${{{name}}}, {found}");
                Err((found, format!("the variable {name} in the environment")))
            }
        }
    }

    /// The variable, with its default as far as that is no secret.
    fn shown(&self) -> String {
        let Self { name, default } = self;
        match default {
            Some(default) if !default.is_empty() => format!("${{{name}:-{}}}", shown(default)),
            Some(_) => format!("${{{name}:-}}"),
            None => format!("${{{name}}}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The variables of the environment that text consists of, without secrets in their defaults.
fn shown_variables(text: &str) -> Option<String> {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(after) = rest.strip_prefix('$') {
        let (variable, after) = Variable::at(after)?;
        shown.push_str(&variable.shown());
        rest = after;
    }
    (rest.is_empty() && !text.is_empty()).then_some(shown)
}

/// Whether text consists of variables of the environment, and shows no secret.
fn is_variables(text: &str) -> bool {
    shown_variables(text).is_some_and(|shown| shown == text)
}

/// Whether a host, with or without a port and path, is a variable of the environment that shows no secret.
fn is_variable_host(text: &str) -> bool {
    let variable = text.strip_prefix('$').and_then(Variable::at);
    variable.is_some_and(|(Variable { default, .. }, after)| {
        let port = after.strip_prefix(':').unwrap_or(after);
        default.is_none_or(|default| !default.contains([':', '@', '/'])) && is_port(port)
    })
}

/// Text without secrets: a URL with `***` as its password; variables; or else `***` alone.
pub(crate) fn shown(text: &str) -> String {
    if let Some(variables) = shown_variables(text) {
        return variables;
    }
    match text.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => format!("{scheme}://{}", shown_rest(rest)),
        _ => HIDDEN.to_owned(),
    }
}

fn is_scheme(scheme: &str) -> bool {
    !scheme.is_empty()
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// What follows the scheme of a URL, without secrets.
fn shown_rest(rest: &str) -> String {
    let (rest, query) = match rest.split_once('?') {
        // A password with a `?` in it, which belongs in percent-encoding.
        Some((_, query)) if query.contains('@') => (rest, None),
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let mut shown = match rest.rsplit_once('@') {
        Some((user_info, host)) => match user_info.split_once(':') {
            Some((user, password)) if !is_variables(password) && !password.is_empty() => {
                format!("{user}:{HIDDEN}@{host}")
            }
            _ => rest.to_owned(),
        },
        // Without a host: a colon and something other than a port.
        None => match rest.split_once(':') {
            Some(_) if is_variable_host(rest) => rest.to_owned(),
            Some((user, after)) if !rest.starts_with('[') && !is_port(after) => {
                format!("{user}:{HIDDEN}")
            }
            _ => rest.to_owned(),
        },
    };
    if let Some(query) = query {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) if name.starts_with("pass") && !is_variables(value) => {
                format!("{name}={HIDDEN}")
            }
            _ => pair.to_owned(),
        });
        shown.push('?');
        shown.push_str(&pairs.collect::<Vec<_>>().join("&"));
    }
    shown
}

fn is_port(text: &str) -> bool {
    let port = text.split(['/', '#']).next().unwrap_or_default();
    port.bytes().all(|byte| byte.is_ascii_digit()) || is_variables(port)
}

/// A message in which the passwords of URLs are hidden.
pub(crate) fn redacted(message: &str) -> String {
    let Some((before, after)) = message.split_once("://") else {
        return message.to_owned();
    };
    let end = after
        .find(['"', '\'', ' ', '\n', ')', ','])
        .unwrap_or(after.len());
    let (url, rest) = after.split_at(end);
    format!("{before}://{}{}", shown_rest(url), redacted(rest))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Text(_) => write!(f, "Secret({})", self.shown()),
            Source::File(_) => write!(f, "Secret(file {})", self.shown()),
        }
    }
}

/// How a secret in a file is written.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct FileSource {
    /// The file's path. A relative path is relative to the document's folder.
    pub(super) file: PathBuf,
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Source::Text(text) => serializer.serialize_str(&shown(text)),
            Source::File(file) => FileSource { file: file.clone() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

struct SecretVisitor;

impl<'de> serde::de::Visitor<'de> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text such as \"${NAME}\", or { file = \"path\" }")
    }

    fn visit_str<E>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::text(text))
    }

    // A number may be a secret without its quotes.
    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Secret, E> {
        Err(E::invalid_type(
            serde::de::Unexpected::Other("a number"),
            &self,
        ))
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::invalid_type(
            serde::de::Unexpected::Other("a number"),
            &self,
        ))
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Secret, E> {
        Err(E::invalid_type(
            serde::de::Unexpected::Other("a number"),
            &self,
        ))
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
    use super::*;

    #[test]
    fn text_is_shown_without_its_secrets() {
        for (text, expected) in [
            ("${REDIS_URL}", "${REDIS_URL}"),
            ("redis://${HOST}:6379", "redis://${HOST}:6379"),
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("redis://user:hunter2@host/0", "redis://user:***@host/0"),
            ("redis://:hunter2@host:6379", "redis://:***@host:6379"),
            ("redis://u:${PASSWORD}@host", "redis://u:${PASSWORD}@host"),
            ("redis://u:hun@ter2@host", "redis://u:***@host"),
            ("redis://u:hun/ter2@host", "redis://u:***@host"),
            ("redis://u:hunter2?@host", "redis://u:***@host"),
            ("redis://u:hunter2", "redis://u:***"),
            (
                "redis+unix:///socket?user=u&pass=hunter2",
                "redis+unix:///socket?user=u&pass=***",
            ),
            ("hunter2", "***"),
            ("x${HASH_KEY}", "***"),
            ("${REDIS_URL:-memory://}", "${REDIS_URL:-memory://}"),
            ("${REDIS_URL:-}", "${REDIS_URL:-}"),
            ("${URL:-redis://:hunter2@host}", "${URL:-redis://:***@host}"),
            ("${HASH_KEY:-hunter2}", "${HASH_KEY:-***}"),
            ("redis://u:${PASSWORD:-hunter2}@host", "redis://u:***@host"),
            (
                "redis://${HOST:-localhost}:6379/0",
                "redis://${HOST:-localhost}:6379/0",
            ),
            ("redis://${HOST:-u:hunter2}", "redis://${HOST:***"),
        ] {
            assert_eq!(shown(text), expected);
            assert!(!format!("{:?}", Secret::text(text)).contains("hunter2"));
        }
    }

    #[test]
    fn a_message_has_no_passwords() {
        let message = r#"found "redis://u:hunter2@a", redis://:hunter2@b and rediss://c; expected http://d:80/"#;
        let shown =
            r#"found "redis://u:***@a", redis://:***@b and rediss://c; expected http://d:80/"#;
        assert_eq!(redacted(message), shown);
    }

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
        for text in [
            "$",
            "${",
            "${}",
            "$NAME",
            "${A-B}",
            "${NO_SUCH_VARIABLE}",
            "***",
        ] {
            assert!(value(text).is_err(), "{text}");
        }
    }
}
