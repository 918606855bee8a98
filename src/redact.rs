//! Text without its secrets, for messages, `Debug` and documents, and the variables of the environment in it.

#[cfg(feature = "config")]
use std::env::{self, VarError};

/// What stands in place of a secret.
pub(crate) const HIDDEN: &str = "***";

/// What stands for code of the application in a document.
pub(crate) const CODE: &str = "code";

/// A variable of the environment: `${NAME}` or `${NAME:-default}`.
pub(crate) struct Variable<'a> {
    name: &'a str,
    default: Option<&'a str>,
}

impl<'a> Variable<'a> {
    /// The variable whose `$` is followed by this text, and what follows the variable.
    pub(crate) fn at(text: &'a str) -> Option<(Self, &'a str)> {
        let (text, after) = text.strip_prefix('{')?.split_once('}')?;
        let (name, default) = match text.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (text, None),
        };
        is_name(name).then_some((Self { name, default }, after))
    }

    /// The value. An error is what was found, and what is expected.
    #[cfg(feature = "config")]
    pub(crate) fn value(&self) -> Result<String, (String, String)> {
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
    if text == CODE {
        return text.to_owned();
    }
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
#[cfg(feature = "config")]
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
        }
    }

    #[cfg(feature = "config")]
    #[test]
    fn a_message_has_no_passwords() {
        let message = r#"found "redis://u:hunter2@a", redis://:hunter2@b and rediss://c; expected http://d:80/"#;
        let shown =
            r#"found "redis://u:***@a", redis://:***@b and rediss://c; expected http://d:80/"#;
        assert_eq!(redacted(message), shown);
    }
}
