//! URLs of Redis without their secrets, for errors and `Debug`.
//!
//! What is shown is what is known to be harmless: the scheme, the host, the port and the database, or the path of the socket.
//! `***` stands in place of everything else.

use std::net::Ipv6Addr;

/// What stands in place of a secret.
const HIDDEN: &str = "***";

/// The most digits of a port or a database that are shown: more may be a password.
const MAX_DIGITS: usize = 5;

/// A URL of Redis without its secrets; `***` for other text.
pub(crate) fn redacted(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => {
            let shown = redacted_authority(rest, scheme.ends_with("unix"));
            format!("{scheme}://{}", shown.as_deref().unwrap_or(HIDDEN))
        }
        _ => HIDDEN.to_owned(),
    }
}

fn is_scheme(scheme: &str) -> bool {
    let schemes = "redis rediss valkey valkeys redis+unix valkey+unix unix";
    schemes
        .split(' ')
        .any(|known| known.eq_ignore_ascii_case(scheme))
}

/// What follows the scheme of a URL: the server. Nothing if the rest is not what a server looks like.
fn redacted_authority(text: &str, is_socket: bool) -> Option<String> {
    let (user_info, rest) = text.split_at(text.rfind('@').map_or(0, |at| at + 1));
    let (server, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    // A separator before the `@` is that of a password that was not percent-encoded, so no part need be what it looks like.
    if user_info.contains(['/', '?', '#']) || !is_server(server, is_socket) {
        return None;
    }
    let user_info = if user_info.is_empty() { "" } else { "***@" };
    let query = if query.is_empty() { "" } else { "?***" };
    Some(format!("{user_info}{server}{query}"))
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
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        #[rustfmt::skip]
        let rows = [
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("rediss://[::1]", "rediss://[::1]"),
            ("rediss://host#insecure", "rediss://***"),
            ("REDIS://host/?protocol=resp3", "REDIS://host/?***"),
            ("redis://host?protocol=hunter2", "redis://host?***"),
            ("redis://user:hunter2@host/0", "redis://***@host/0"),
            ("redis://:hunter2@host:6379", "redis://***@host:6379"),
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
            ("redis+unix:///socket?user=u&pass=hun@ter2", "redis+unix://***"),
            ("hunter2", "***"),
            ("u:hunter2@host:6379", "***"),
            ("redis://u:hunter2@host:6379/0", "redis://***@host:6379/0"),
            ("redis://u:hun$ter2@host", "redis://***@host"),
            ("redis://u:${hunter2}@host", "redis://***@host"),
            ("redis://u:hun$ter2@host", "redis://***@host"),
            ("redis://host?${hunter2}", "redis://host?***"),
            ("redis://${hunter2}", "redis://***"),
            ("${hunter2}", "***"),
            ("", "***"),
        ];
        for (text, expected) in rows {
            assert_eq!(redacted(text), expected, "{text}");
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
            "&", "=", "%", ",", " ", "$", "}", "${A}", "${A:-", "pass=", "***", "\u{e4}",
        ]);
        vec(parts, 0..6).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn no_part_of_a_password_is_shown_wherever_it_stands(
            password in password(),
            scheme in select(vec!["redis", "REDISS", "redis+unix", "unix"]),
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn of_a_url_that_can_be_used_the_address_alone_is_shown(
            scheme in select(vec!["redis", "redis+unix", "unix"]),
            before in around(),
            after in around(),
        ) {
            let text = format!("{scheme}://{before}{}{after}", ENDS[0]);
            if let Ok(info) = text.as_str().into_connection_info()
                && !info.addr().to_string().contains(ENDS[0])
            {
                let shown = redacted(&text);
                prop_assert!(!shown.contains(ENDS[0]), "{text}: {shown}");
            }
        }
    }
}
