//! Text without its secrets, for `Debug`, errors and documents.
//!
//! What is shown is what is known to be harmless: variables of the environment, and of a URL of Redis its scheme, user, host,
//! port, database, path of a socket, and some parameters. `***` stands in place of everything else.

/// What stands in place of a secret.
pub(crate) const HIDDEN: &str = "***";

/// What stands for code of the application in a document.
pub(crate) const CODE: &str = "code";

/// The schemes of URLs that are shown: those of Redis, and that of no store.
const SCHEMES: [&str; 8] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "redis+unix",
    "valkey+unix",
    "unix",
    "memory",
];

/// The most digits of a port or a database that are shown: more may be a password.
const MAX_DIGITS: usize = 5;

/// A variable of the environment: `${NAME}` or `${NAME:-default}`.
#[derive(Clone, Copy)]
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    pub(crate) default: Option<&'a str>,
}

impl<'a> Variable<'a> {
    /// The variable whose `$` is followed by this text, and what follows the variable.
    pub(crate) fn at(text: &'a str) -> Option<(Self, &'a str)> {
        let (text, after) = text.strip_prefix('{')?.split_once('}')?;
        let (name, default) = match text.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (text, None),
        };
        is_variable_name(name).then_some((Self { name, default }, after))
    }

    /// The variable, with its default as `show` shows it.
    fn redacted(&self, show: impl Fn(&str) -> Option<String>) -> Option<String> {
        let Self { name, default } = self;
        Some(match default {
            None => format!("${{{name}}}"),
            Some("") => format!("${{{name}:-}}"),
            Some(default) => format!("${{{name}:-{}}}", show(default)?),
        })
    }
}

fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A character of a text, or a variable in it, whose default is not looked into for the characters that separate the parts of a
/// URL.
#[derive(Clone, Copy)]
enum Part<'a> {
    Char(char),
    Variable(Variable<'a>),
}

impl Part<'_> {
    fn is(&self, other: char) -> bool {
        matches!(self, Self::Char(char) if *char == other)
    }
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        rest = &rest[char.len_utf8()..];
        match (char, Variable::at(rest)) {
            ('$', Some((variable, after))) => {
                parts.push(Part::Variable(variable));
                rest = after;
            }
            // An escaped $, which begins no variable.
            ('$', None) if rest.starts_with('$') => {
                parts.extend([Part::Char('$'), Part::Char('$')]);
                rest = &rest[1..];
            }
            _ => parts.push(Part::Char(char)),
        }
    }
    parts
}

/// Text without secrets. Text that is neither a URL of Redis nor consists of variables is `***` as a whole.
pub(crate) fn redacted(text: &str) -> String {
    if text == CODE {
        return text.to_owned();
    }
    let parts = parts(text);
    only_variables(&parts, |default| Some(redacted(default)))
        .or_else(|| url(&parts))
        .unwrap_or_else(|| HIDDEN.to_owned())
}

/// The value of a text, in which a `$` begins no variable, without secrets.
#[cfg(feature = "redis")]
pub(crate) fn redacted_value(value: &str) -> String {
    let parts: Vec<_> = value.chars().map(Part::Char).collect();
    or_hidden(url(&parts))
}

/// Text that consists of variables, if `show` shows their defaults.
fn only_variables(parts: &[Part<'_>], show: impl Fn(&str) -> Option<String>) -> Option<String> {
    let shown = parts.iter().map(|part| match part {
        Part::Variable(variable) => variable.redacted(&show),
        Part::Char(_) => None,
    });
    shown.collect()
}

/// Text that consists of plain characters, and of variables whose defaults do.
fn plain(parts: &[Part<'_>], is_plain: impl Fn(char) -> bool) -> Option<String> {
    let text = |text: &str| text.chars().all(&is_plain).then(|| text.to_owned());
    let shown = parts.iter().map(|part| match part {
        Part::Variable(variable) => variable.redacted(text),
        Part::Char(char) => is_plain(*char).then(|| char.to_string()),
    });
    shown.collect()
}

fn or_hidden(shown: Option<String>) -> String {
    shown.unwrap_or_else(|| HIDDEN.to_owned())
}

fn split_once<'a, 'b>(
    parts: &'b [Part<'a>],
    separator: char,
) -> Option<(&'b [Part<'a>], &'b [Part<'a>])> {
    let at = parts.iter().position(|part| part.is(separator))?;
    Some((&parts[..at], &parts[at + 1..]))
}

fn url(parts: &[Part<'_>]) -> Option<String> {
    let (scheme, rest) = split_once(parts, ':')?;
    let scheme = plain(scheme, |char| char.is_ascii_alphabetic() || char == '+')?;
    if !SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) {
        return None;
    }
    let rest = match rest {
        [first, second, rest @ ..] if first.is('/') && second.is('/') => rest,
        _ => return None,
    };
    let is_end = |part: &Part<'_>| ['/', '?', '#'].iter().any(|end| part.is(*end));
    let end = rest.iter().position(is_end).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    // A password with a separator in it, which belongs in percent-encoding: so no part is what it looks like.
    if rest.iter().any(|part| part.is('@')) {
        return Some(format!("{scheme}://{HIDDEN}"));
    }
    let (rest, fragment) = match split_once(rest, '#') {
        Some((rest, fragment)) => (rest, Some(fragment)),
        None => (rest, None),
    };
    let (path, query) = match split_once(rest, '?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    let mut shown = format!("{scheme}://{}", redacted_authority(authority));
    shown += &redacted_path(path, scheme.contains("unix"));
    if let Some(query) = query {
        let pairs = query.split(|part| part.is('&')).map(redacted_pair);
        shown = shown + "?" + &pairs.collect::<Vec<_>>().join("&");
    }
    if let Some(fragment) = fragment {
        let is_insecure = plain(fragment, |_| true).is_some_and(|shown| shown == "insecure");
        shown = shown + "#" + if is_insecure { "insecure" } else { HIDDEN };
    }
    Some(shown)
}

fn redacted_authority(authority: &[Part<'_>]) -> String {
    match authority.iter().rposition(|part| part.is('@')) {
        Some(at) => {
            let (user_info, server) = (&authority[..at], &authority[at + 1..]);
            redacted_user_info(user_info) + "@" + &redacted_server(server)
        }
        None => redacted_server(authority),
    }
}

/// The user and the password. A user without a password may be the password.
fn redacted_user_info(user_info: &[Part<'_>]) -> String {
    match split_once(user_info, ':') {
        Some((user, password)) if !password.is_empty() => {
            or_hidden(name(user)) + ":" + &or_hidden(only_variables(password, |_| None))
        }
        _ => or_hidden(only_variables(user_info, |_| None)),
    }
}

/// The host and the port.
fn redacted_server(server: &[Part<'_>]) -> String {
    let (host, port) = match server {
        // An IPv6 address, which has colons.
        [first, address @ ..] if first.is('[') => match split_once(address, ']') {
            Some((address, rest)) => {
                let is_address = |char: char| char.is_ascii_hexdigit() || ":.".contains(char);
                let address = plain(address, is_address).map(|address| format!("[{address}]"));
                match rest {
                    [colon, port @ ..] if colon.is(':') => (address, Some(port)),
                    [] => (address, None),
                    _ => (None, None),
                }
            }
            None => (None, None),
        },
        _ => match split_once(server, ':') {
            Some((host, port)) => (name(host), Some(port)),
            None => (name(server), None),
        },
    };
    let port = port.map(|port| format!(":{}", or_hidden(number(port))));
    or_hidden(host) + &port.unwrap_or_default()
}

/// The database, or the path of a socket.
fn redacted_path(path: &[Part<'_>], is_socket: bool) -> String {
    let Some((_, path)) = path.split_first() else {
        return String::new();
    };
    let is_file = |char: char| char.is_ascii_alphanumeric() || "/._-".contains(char);
    let path = if is_socket {
        plain(path, is_file)
    } else {
        number(path)
    };
    format!("/{}", or_hidden(path))
}

/// A parameter and its value.
fn redacted_pair(pair: &[Part<'_>]) -> String {
    let shown = split_once(pair, '=').and_then(|(parameter, value)| {
        let parameter = plain(parameter, |char| char.is_ascii_lowercase())?;
        let value = match parameter.as_str() {
            "db" => number(value),
            "protocol" => protocol(value),
            "user" => name(value),
            "pass" | "password" => only_variables(value, |_| None),
            _ => return None,
        };
        Some(format!("{parameter}={}", or_hidden(value)))
    });
    or_hidden(shown)
}

/// The name of a user or a host.
fn name(parts: &[Part<'_>]) -> Option<String> {
    plain(parts, |char| {
        char.is_ascii_alphanumeric() || "._-".contains(char)
    })
}

/// A version of Redis's protocol: any other text may be a secret.
fn protocol(parts: &[Part<'_>]) -> Option<String> {
    let known = |text: &str| {
        ["2", "3", "resp2", "resp3"]
            .contains(&text)
            .then(|| text.to_owned())
    };
    only_variables(parts, known)
        .or_else(|| known(&plain(parts, |char| char.is_ascii_alphanumeric())?))
}

/// A port, or the number of a database.
fn number(parts: &[Part<'_>]) -> Option<String> {
    let is_short = parts.len() <= MAX_DIGITS;
    let shown = plain(parts, |char| char.is_ascii_digit());
    shown.filter(|_| is_short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_without_its_secrets() {
        for (text, expected) in [
            ("${REDIS_URL}", "${REDIS_URL}"),
            ("${A}${B:-}", "${A}${B:-}"),
            ("$${REDIS_URL}", "***"),
            ("redis://${HOST}:6379", "redis://${HOST}:6379"),
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("rediss://host#insecure", "rediss://host#insecure"),
            (
                "REDIS://host/?protocol=resp3",
                "REDIS://host/?protocol=resp3",
            ),
            ("redis://host?protocol=hunter2", "redis://host?protocol=***"),
            (
                "redis://host?protocol=${PROTOCOL:-resp3}",
                "redis://host?protocol=${PROTOCOL:-resp3}",
            ),
            (
                "redis://host?protocol=${PROTOCOL:-hunter2}",
                "redis://host?protocol=***",
            ),
            ("redis://user:hunter2@host/0", "redis://user:***@host/0"),
            ("redis://:hunter2@host:6379", "redis://:***@host:6379"),
            ("redis://u:${PASSWORD}@host", "redis://u:${PASSWORD}@host"),
            ("redis://${USER_INFO}@host", "redis://${USER_INFO}@host"),
            ("redis://u:$${hunter2}@host", "redis://u:***@host"),
            ("redis://u:hun@ter2@host", "redis://u:***@host"),
            ("redis://u:hun:ter2@host", "redis://u:***@host"),
            ("redis://hunter2@host", "redis://***@host"),
            ("redis://hunter2:@host", "redis://***@host"),
            ("redis://u:hun/ter2@host", "redis://***"),
            ("redis://u:12/ter2@host", "redis://***"),
            ("redis://u:hunter2?@host", "redis://***"),
            ("redis://u:hunter2", "redis://u:***"),
            ("redis://u:4815162342", "redis://u:***"),
            ("redis://host/hunter2", "redis://host/***"),
            ("redis://[hunter2", "redis://***"),
            ("redis://[::1]hunter2", "redis://***"),
            ("redis://host?hunter2", "redis://host?***"),
            ("redis://host/?hunter=2&db=1", "redis://host/?***&db=1"),
            ("redis://host#hunter2", "redis://host#***"),
            (
                "redis+unix:///run/a-b.sock?user=u&pass=hunter2&db=1",
                "redis+unix:///run/a-b.sock?user=u&pass=***&db=1",
            ),
            ("unix:///a?pass=${PASSWORD}", "unix:///a?pass=${PASSWORD}"),
            (
                "redis+unix:///socket?user=u&pass=hun@ter2",
                "redis+unix://***",
            ),
            ("redis://host:6379/?x=a@b&password=hunter2", "redis://***"),
            ("hunter2", "***"),
            ("hunter2://hunter2", "***"),
            ("redis:hunter2@host", "***"),
            ("x${HASH_KEY}", "***"),
            ("", ""),
            ("code", "code"),
            ("${REDIS_URL:-memory://}", "${REDIS_URL:-memory://}"),
            ("${URL:-redis://:hunter2@host}", "${URL:-redis://:***@host}"),
            ("${HASH_KEY:-hunter2}", "${HASH_KEY:-***}"),
            ("redis://u:${PASSWORD:-hunter2}@host", "redis://u:***@host"),
            (
                "redis://u:${PASSWORD:-}@host",
                "redis://u:${PASSWORD:-}@host",
            ),
            (
                "redis://${HOST:-localhost}:${PORT:-6379}/0",
                "redis://${HOST:-localhost}:${PORT:-6379}/0",
            ),
            ("redis://${HOST:-u:hunter2}", "redis://***"),
            ("redis://${HOST:-u:hunter2@host}/0", "redis://***/0"),
        ] {
            assert_eq!(redacted(text), expected, "{text}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_value_has_no_variables() {
        for (value, expected) in [
            ("redis://u:hunter2@host:6379/0", "redis://u:***@host:6379/0"),
            ("redis://u:${hunter2}@host", "redis://u:***@host"),
            ("${hunter2}", "***"),
            ("code", "***"),
        ] {
            assert_eq!(redacted_value(value), expected, "{value}");
        }
    }
}
