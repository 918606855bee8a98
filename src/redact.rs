//! Text without its secrets, for `Debug`, errors and documents; and the syntax of environment variables in documents.
//!
//! What is shown is what is known to be harmless: variables of the environment, and of a URL of Redis its scheme, host, port and
//! database, or the path of its socket, and a user whose password is a variable. `***` stands in place of everything else.

use std::net::Ipv6Addr;

use crate::{error::InvalidValue, setting::CODE};

/// What stands in place of a secret.
pub(crate) const HIDDEN: &str = "***";

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
}

/// The text with each variable replaced by its value, and each `$$` by `$`.
pub(crate) fn expand(
    text: &str,
    value: impl Fn(Variable<'_>) -> Result<String, InvalidValue>,
) -> Result<String, InvalidValue> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = match after.strip_prefix('$') {
            Some(after) => {
                expanded.push('$');
                after
            }
            None => {
                let (variable, after) = Variable::at(after).ok_or_else(|| {
                    let found = "a $ that is not followed by the name of a variable in braces";
                    InvalidValue::new(found, "\"${NAME}\", or \"$$\" for a $")
                })?;
                expanded.push_str(&value(variable)?);
                after
            }
        };
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// The text with each variable replaced by its default, or by `unset` if it has none; `None` if a `$` begins no variable.
fn with_defaults(text: &str, unset: &str) -> Option<String> {
    let value = |variable: Variable<'_>| Ok(variable.default.unwrap_or(unset).to_owned());
    expand(text, value).ok()
}

/// Whether the text consists of variables without a default, or with an empty one.
fn is_variables(text: &str) -> bool {
    with_defaults(text, "").is_some_and(|text| text.is_empty())
}

/// Text without secrets. Text that is neither a URL of Redis nor consists of variables is `***` as a whole.
pub(crate) fn redacted(text: &str) -> String {
    if text == CODE || is_variables(text) {
        return text.to_owned();
    }
    match text.strip_prefix('$').and_then(Variable::at) {
        Some((Variable { name, default }, "")) => {
            let default = redacted_url(default.unwrap_or_default());
            format!("${{{name}:-{default}}}")
        }
        _ => redacted_url(text),
    }
}

/// A value whose variables were expanded before, without secrets: a `$` in it is a `$`.
#[cfg(feature = "redis")]
pub(crate) fn redacted_value(value: &str) -> String {
    // Percent-encoded, as in a URL.
    redacted_url(&value.replace('$', "%24"))
}

/// A URL of Redis without its secrets; `***` for other text.
fn redacted_url(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => {
            let shown = redacted_authority(rest, scheme.ends_with("unix"));
            format!("{scheme}://{}", shown.as_deref().unwrap_or(HIDDEN))
        }
        _ => HIDDEN.to_owned(),
    }
}

/// Whether it is a scheme of Redis, or `memory`, which stands for counting in process.
fn is_scheme(scheme: &str) -> bool {
    let schemes = "redis rediss valkey valkeys redis+unix valkey+unix unix memory";
    schemes
        .split(' ')
        .any(|known| known.eq_ignore_ascii_case(scheme))
}

/// What follows the scheme of a URL: the server, with what is before its `@` and after its `?` only if these are variables.
/// Nothing if the rest is not what a server looks like.
fn redacted_authority(text: &str, is_socket: bool) -> Option<String> {
    let (user_info, rest) = text.split_at(text.rfind('@').map_or(0, |at| at + 1));
    let (server, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    // A separator before the `@` is that of a password that was not percent-encoded, so no part need be what it looks like.
    if with_defaults(user_info, "0")?.contains(['/', '?', '#']) {
        return None;
    }
    if !is_server(&with_defaults(server, "0")?, is_socket) {
        return None;
    }
    let user_info = match user_info.strip_suffix('@') {
        Some(text) if !is_user_info(text) => "***@",
        _ => user_info,
    };
    let query = match query.strip_prefix('?') {
        Some(text) if !is_variables(text) => "?***",
        _ => query,
    };
    Some(format!("{user_info}{server}{query}"))
}

/// Whether it is a variable, or a user and a variable. A user alone is not shown, since it may be a password.
fn is_user_info(text: &str) -> bool {
    let (user, password) = text.split_once(':').unwrap_or(("", text));
    let is_user = with_defaults(user, "0").is_some_and(|user| is_name(&user));
    is_user && is_variables(password) && !password.is_empty()
}

/// Whether it is `host`, `host:port`, one of them with `/database`, the path of a socket, or empty.
fn is_server(text: &str, is_socket: bool) -> bool {
    if is_socket {
        return text.starts_with('/') && text.split('/').all(is_name);
    }
    let (address, database) = text.split_once('/').unwrap_or((text, ""));
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (address, ""),
    };
    let is_host = match host.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
        Some(ip) => ip.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && is_name(host),
    };
    text.is_empty() || is_host && is_number(port) && is_number(database)
}

/// Whether it consists of the characters of names of users and hosts.
fn is_name(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Whether it is a port or the number of a database, or empty.
fn is_number(text: &str) -> bool {
    text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    #[test]
    fn text_is_shown_without_its_secrets() {
        #[rustfmt::skip]
        let rows = [
            ("${REDIS_URL}", "${REDIS_URL}"),
            ("${A}${B:-}", "${A}${B:-}"),
            ("$${REDIS_URL}", "***"),
            ("redis://${HOST}:6379", "redis://${HOST}:6379"),
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("rediss://[::1]", "rediss://[::1]"),
            ("rediss://host#insecure", "rediss://***"),
            ("REDIS://host/?protocol=resp3", "REDIS://host/?***"),
            ("redis://host?protocol=hunter2", "redis://host?***"),
            ("redis://host?protocol=${PROTOCOL}", "redis://host?***"),
            ("redis://host?${QUERY}", "redis://host?${QUERY}"),
            ("redis://host?${QUERY:-hunter2}", "redis://host?***"),
            ("redis://user:hunter2@host/0", "redis://***@host/0"),
            ("redis://:hunter2@host:6379", "redis://***@host:6379"),
            ("redis://u:${PASSWORD}@host", "redis://u:${PASSWORD}@host"),
            ("redis://:${PASSWORD}@host", "redis://:${PASSWORD}@host"),
            ("redis://${U}:${PASS}@host/0", "redis://${U}:${PASS}@host/0"),
            ("redis://${USER_INFO}@host", "redis://${USER_INFO}@host"),
            ("redis://u:hunter2${PASSWORD}@host", "redis://***@host"),
            ("redis://hunter%32:${PASSWORD}@host", "redis://***@host"),
            ("redis://u:hun@ter2@host", "redis://***@host"),
            ("redis://hunter2@host", "redis://***@host"),
            ("redis://u:hun/ter2@host", "redis://***"),
            ("redis://u:12/ter2@host", "redis://***"),
            ("redis://u:hunter2", "redis://***"),
            ("redis://u:4815162342", "redis://***"),
            ("redis://:48151", "redis://***"),
            ("redis://u:48151@", "redis://***@"),
            ("redis://host/hunter2", "redis://***"),
            ("redis://host/4815162342", "redis://***"),
            ("redis://host/?hunter=2&db=1", "redis://host/?***"),
            ("redis://h1,redis://u:hunter2@h2", "redis://***"),
            ("unix:///run/a-b.sock", "unix:///run/a-b.sock"),
            ("redis+unix:///run/a-b.sock?user=u&pass=hunter2&db=1", "redis+unix:///run/a-b.sock?***"),
            ("unix:///a?pass=${PASSWORD}", "unix:///a?***"),
            ("redis+unix:///socket?user=u&pass=hun@ter2", "redis+unix://***"),
            ("hunter2", "***"),
            ("u:hunter2@host:6379", "***"),
            ("", ""),
            ("code", "code"),
            ("memory://", "memory://"),
            ("${REDIS_URL:-memory://}", "${REDIS_URL:-memory://}"),
            ("${URL:-redis://:hunter2@host}", "${URL:-redis://***@host}"),
            ("${HASH_KEY:-hunter2}", "${HASH_KEY:-***}"),
            ("${HASH_KEY:-code}", "${HASH_KEY:-***}"),
            ("${A:-hunter2}${B}", "***"),
            ("redis://u:${PASSWORD:-hunter2}@host", "redis://***@host"),
            ("redis://u:${PASSWORD:-}@host", "redis://u:${PASSWORD:-}@host"),
            ("redis://${HOST:-localhost}:${PORT:-6379}/0", "redis://${HOST:-localhost}:${PORT:-6379}/0"),
            ("redis://${HOST:-u:hunter2@host}/0", "redis://***"),
            ("redis://${HOST:-u:hun@${ter2}", "redis://***"),
        ];
        for (text, expected) in rows {
            assert_eq!(redacted(text), expected, "{text}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_value_has_no_variables() {
        for (value, expected) in [
            ("redis://u:hunter2@host:6379/0", "redis://***@host:6379/0"),
            ("redis://u:${hunter2}@host", "redis://***@host"),
            ("redis://u:hun$ter2@host", "redis://***@host"),
            ("redis://host?${hunter2}", "redis://host?***"),
            ("redis://${hunter2}", "redis://***"),
            ("${hunter2}", "***"),
            ("code", "***"),
        ] {
            assert_eq!(redacted_value(value), expected, "{value}");
        }
    }

    /// The ends of each password. No other text has them.
    const ENDS: [&str; 2] = ["Xq7k", "Zw9p"];

    fn password() -> impl Strategy<Value = String> {
        let middle = prop_oneof![
            "[ !-/:-@\\[-`{-~\\t\\n]{0,4}",
            "[@:/?#&=,${}%]{1,3}",
            "\\PC{0,3}",
        ];
        middle.prop_map(|middle| format!("{}{middle}{}", ENDS[0], ENDS[1]))
    }

    /// Text around a password, with what separates the parts of a URL.
    fn around() -> impl Strategy<Value = String> {
        let parts = select(vec![
            "redis://", "unix:///", "u", "host", "[::1]", "6379", "0", ":", "@", "/", "?", "#",
            "&", "=", "%", ",", " ", "$", "}", "${A}", "${A:-", "pass=", "code", "***", "\u{e4}",
        ]);
        vec(parts, 0..6).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn no_part_of_a_password_is_shown_wherever_it_stands(
            password in password(),
            scheme in select(vec!["redis", "REDISS", "redis+unix", "unix", "memory"]),
            before in around(),
            after in around(),
        ) {
            // What is behind the last `@` may be a host.
            let no_at = password.replace('@', "!");
            for text in [
                format!("{scheme}://{before}:{password}@{after}"),
                format!("{scheme}://{before}{password}@{after}"),
                format!("{scheme}://{before}:{no_at}"),
                format!("redis://{before}/{password}{after}"),
                format!("{scheme}://{before}?{password}{after}"),
                format!("{scheme}://{before}#{password}{after}"),
                format!("redis://{before},{scheme}://:{password}@{after}"),
                format!("{scheme}://u:${{A:-{password}}}@{after}"),
                format!("{scheme}://${{A:-u:{no_at}}}{after}"),
                format!("${{A:-{scheme}://{before}:{password}@{after}}}"),
                format!("{before}{password}{after}").replace('/', ""),
                format!("x{before}{password}{after}"),
            ] {
                let shown = redacted(&text);
                for end in ENDS {
                    prop_assert!(!shown.contains(end), "{text}: {shown}");
                }
                prop_assert!(shown == text || shown.contains(HIDDEN), "{text}: {shown}");
                prop_assert_eq!(redacted(&shown), shown);
            }
        }
    }

    #[cfg(feature = "redis")]
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn of_a_url_that_can_be_used_the_address_alone_is_shown(
            scheme in select(vec!["redis", "redis+unix", "unix"]),
            before in around(),
            after in around(),
        ) {
            use redis::IntoConnectionInfo;

            let text = format!("{scheme}://{before}{}{after}", ENDS[0]);
            if let Ok(info) = text.as_str().into_connection_info()
                && !info.addr().to_string().contains(ENDS[0])
            {
                let shown = redacted_value(&text);
                prop_assert!(!shown.contains(ENDS[0]), "{text}: {shown}");
            }
        }
    }
}
