//! What errors show of secrets: never a part of one.

use crate::documents::support::*;

/// A number in place of a secret, and texts.
#[rustfmt::skip]
const VALUES: [&str; 6] = [
    "4815162342", "-4815162342", "4815162342.5", "\"hunter2\"", "\"redis://u:hun,ter2@h\"", "\"redis://u:12,ter2@h\"",
];

/// What those values have in common, and all of their parts that are secret.
const PARTS: [&str; 4] = ["4815162342", "hun", "ter2", "12,"];

/// Asserts that the error of a text, if there is one, shows no part of a secret; returns whether there is one.
fn hides_secrets(text: &str, format: Format) -> bool {
    let Err(error) = Document::parse(text, format) else {
        return false;
    };
    let error = format!("{error} {error:?}");
    for part in PARTS {
        assert!(!error.contains(part), "{text}: {error}");
    }
    true
}

#[test]
fn no_mistake_shows_what_stands_where_a_secret_is_expected() {
    let tables = ["store", "store.tls", "store.sentinel", "bearer"];
    #[rustfmt::skip]
    let secrets = [
        "store.url", "store.sentinel.server_url", "store.tls.root_certificates", "store.tls.client_certificate",
        "store.tls.client_key", "bearer.hash_key",
    ];
    let arrays = ["store.cluster", "store.sentinel.urls"];
    let mut shown = 0;
    let mut check = |text: String, format| shown += u32::from(hides_secrets(&text, format));
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
            for keys in [form, &format!("[{form}]")] {
                let list = format!("allow = [{{ policy = 'api', keys = {keys} }}]");
                check(list, Format::Toml);
            }
        }
    }
    #[rustfmt::skip]
    let values = [
        "481516234248151623424815162342", "-481516234248151623424815162342", "!x 4815162342", "{hunter2}", "{hunter2: 1}",
    ];
    for value in values {
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
    // What an alias stands for is shown nowhere else either.
    #[rustfmt::skip]
    let others = [
        "enabled: *a", "rejections: *a", "on_store_error: *a", "deny: *a", "deny: [*a]", "store: {hash_tags: *a}",
        "store: {circuit_breaker_threshold: *a}", "policies: {api: {tiers: *a}}", "headers: *a", "policies: {api: {missing_key: *a}}",
    ];
    for other in others {
        let text = format!("bearer: {{hash_key: &a hunter2}}\n{other}\n");
        check(text, Format::Yaml);
    }
    assert!(shown > 300, "{shown}");
}

#[test]
fn no_error_of_syntax_repeats_the_text() {
    let values = r#"hunter2 | "hunter2 | "hunter2" hunter2 | 'hunter2 | "hun\ter2\q" | "hun\xter2" | 4815162342x
        | redis://u:hunter2@h | "redis://u:hunter2@h | *hunter2 | &hunter2 | !hunter2 | !!hunter2 1 | {hunter2 | [hunter2
        | |hunter2 | %hunter2 | @hunter2 | `hunter2"#;
    for value in values.split("| ").map(str::trim) {
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
            hides_secrets(&text, format);
        }
    }
}
