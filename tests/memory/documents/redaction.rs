//! What `Debug`, texts and errors show of secrets: never a part of one.

use crate::documents::support::*;
use proptest::prelude::*;
use tollgate::config::{Secret, StoreSection};

/// The ends of each password. No URL has them elsewhere.
const ENDS: [&str; 2] = ["Xq7k", "Zw9p"];

/// A number in place of a secret, and texts.
const VALUES: [&str; 6] = [
    "4815162342",
    "-4815162342",
    "4815162342.5",
    "\"hunter2\"",
    "\"redis://u:hun,ter2@h\"",
    "\"redis://u:12,ter2@h\"",
];

/// What those values have in common, and all of their parts that are secret.
const PARTS: [&str; 4] = ["4815162342", "hun", "ter2", "12,"];

/// Where a URL has its password, or what may be taken for one, at `{}`.
const URLS: [&str; 16] = [
    "redis://u:{}@host:6379/0",
    "redis://u:{}@host",
    "redis://:{}@host:6379",
    "rediss://u:{}@[::1]:6379/0#insecure",
    "redis://{}@host",
    "redis://u@{}@host",
    "redis://u:{}@${HOST:-localhost}:${PORT}/0",
    "redis+unix:///socket?user=u&pass={}",
    "unix:///socket?pass={}&db=1",
    "unix://?pass={}",
    "redis+unix:///socket?user=a@b&pass={}",
    "redis://host:6379/?x=a@b&password={}",
    "redis://host:6379/0?protocol=resp3&pass={}",
    "redis://u:${PASSWORD:-{}}@host",
    "${URL:-redis://u:{}@host}",
    "{}",
];

fn password() -> impl Strategy<Value = String> {
    let odd = prop_oneof![
        "[ !-/:-@\\[-`{-~\\t\\n]{0,4}",
        "[@:/?#&=,${}%]{1,3}",
        "\\PC{0,3}",
    ];
    odd.prop_map(|odd| format!("{}{odd}{}", ENDS[0], ENDS[1]))
}

fn percent_encoded(text: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_part_of_a_password_in_a_url_is_shown(password in password(), encoded: bool) {
        let password = if encoded { percent_encoded(&password) } else { password };
        for url in URLS {
            let secret = Secret::text(url.replacen("{}", &password, 1));
            let mut document = Document::default();
            let mut store = StoreSection::default();
            store.url = Some(secret.clone());
            document.store = Some(store);
            let text = document.to_text(Format::Yaml).expect("a text");
            let shown = format!("{secret:?} {document:?} {text}");
            for end in ENDS {
                prop_assert!(!shown.contains(end), "{url}: {shown}");
            }
        }
    }
}

#[test]
fn no_mistake_shows_what_stands_where_a_secret_is_expected() {
    let tables = ["store", "store.tls", "store.sentinel", "bearer"];
    let secrets = [
        "store.url",
        "store.sentinel.server_url",
        "store.tls.root_certificates",
        "store.tls.client_certificate",
        "store.tls.client_key",
        "bearer.hash_key",
    ];
    let arrays = ["store.cluster", "store.sentinel.urls"];
    let mut shown = 0;
    let mut check = |text: String, format| {
        if let Err(error) = Document::parse(&text, format) {
            let error = format!("{error} {error:?}");
            for part in PARTS {
                assert!(!error.contains(part), "{text}: {error}");
            }
            shown += 1;
        }
    };
    for value in VALUES {
        let array = format!("[{value}]");
        let nested = format!("[[{value}]]");
        let unknown = format!("{{ hunter2 = {value} }}");
        let more = format!("{{ file = 'a', hunter2 = {value} }}");
        let file = format!("{{ file = [{value}] }}");
        let forms = [value, &array, &nested, &unknown, &more, &file];
        for path in tables {
            check(format!("{path} = {value}"), Format::Toml);
            check(format!("{path} = {array}"), Format::Toml);
        }
        for form in forms {
            for path in secrets.iter().chain(&arrays) {
                check(format!("{path} = {form}"), Format::Toml);
            }
            for path in arrays {
                check(format!("{path} = ['a', {form}]"), Format::Toml);
            }
            check(
                format!("allow = [{{ policy = 'api', keys = {form} }}]"),
                Format::Toml,
            );
            check(
                format!("allow = [{{ policy = 'api', keys = [{form}] }}]"),
                Format::Toml,
            );
        }
    }
    for value in [
        "481516234248151623424815162342",
        "-481516234248151623424815162342",
        "!x 4815162342",
        "{hunter2}",
        "{hunter2: 1}",
    ] {
        check(format!("bearer: {{hash_key: {value}}}"), Format::Yaml);
        check(format!("bearer:\n  hash_key: {value}\n"), Format::Yaml);
        check(
            format!("allow: [{{policy: api, keys: [{value}]}}]"),
            Format::Yaml,
        );
        check(
            format!("{{\"bearer\": {{\"hash_key\": {value}}}}}"),
            Format::Json,
        );
    }
    assert!(shown > 300, "{shown}");
}

#[test]
fn no_error_of_syntax_repeats_the_text() {
    for value in [
        "hunter2",
        "\"hunter2",
        "\"hunter2\" hunter2",
        "'hunter2",
        "\"hun\\ter2\\q\"",
        "\"hun\\xter2\"",
        "4815162342x",
        "redis://u:hunter2@h",
        "\"redis://u:hunter2@h",
        "*hunter2",
        "&hunter2",
        "!hunter2",
        "!!hunter2 1",
        "{hunter2",
        "[hunter2",
        "|hunter2",
        "%hunter2",
        "@hunter2",
        "`hunter2",
    ] {
        for (text, format) in [
            (format!("store.url = {value}"), Format::Toml),
            (format!("store.url = [{value}]"), Format::Toml),
            (format!("store:\n  url: {value}\n"), Format::Yaml),
            (format!("store:\n  url: [{value}]\n"), Format::Yaml),
            (
                format!("store: {{url: {value}, url: {value}}}"),
                Format::Yaml,
            ),
            (format!("{{\"store\": {{\"url\": {value}}}}}"), Format::Json),
        ] {
            if let Err(error) = Document::parse(&text, format) {
                let error = format!("{error} {error:?}");
                for part in PARTS {
                    assert!(!error.contains(part), "{text}: {error}");
                }
            }
        }
    }
}
