//! From text to a document, and its mistakes.

use crate::documents::support::*;

/// The mistakes of a text in TOML, one line each.
fn mistakes(text: &str) -> Vec<String> {
    let error = Document::parse(text, Format::Toml).expect_err("mistakes");
    error.to_string().lines().map(str::to_owned).collect()
}

/// Every field.
pub(crate) const EVERY_FIELD: &str = include_str!("every_field.toml");

#[test]
fn a_document_with_every_field_is_the_same_in_each_format() {
    let table: toml::Table = EVERY_FIELD.parse().expect("TOML");
    let json = serde_json::to_string_pretty(&table).expect("JSON");
    let yaml = yaml_serde::to_string(&table).expect("YAML");
    document(EVERY_FIELD);
    // In the order of all three.
    let expected = document(&toml::to_string(&table).expect("TOML"));
    for (text, format) in [(json, Format::Json), (yaml, Format::Yaml)] {
        let read = Document::parse(&text, format);
        let read = read.unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read, expected, "{text}");
        assert_eq!(read.text(), text);
    }
}

#[test]
fn the_largest_number_is_read_in_each_format() {
    let toml = "policies.api = { quota = '1/s', cost = 18446744073709551615 }";
    let yaml = "policies: { api: { quota: 1/s, cost: 18446744073709551615 } }";
    let json = r#"{"policies": {"api": {"quota": "1/s", "cost": 18446744073709551615}}}"#;
    let expected = document(toml);
    for (text, format) in [(yaml, Format::Yaml), (json, Format::Json)] {
        assert_eq!(
            Document::parse(text, format).as_ref(),
            Ok(&expected),
            "{text}"
        );
    }
}

#[test]
fn all_mistakes_are_found_at_once_each_at_its_place() {
    let text = r#"
enabled = "yes"
headerz = "draft"
on_store_error = "admitt"
on_misconfiguration = 3
deny = [{ addresses = "192.0.2.1" }, { addresses = ["192.0.2.1", 5] }]

[store]
url = 17
timeout = "50 parsecs"
circuit_breaker_threshold = true
rejection_cache = { stale = "1s" }

[policies.api]
quota = "100/mins x"
cost = [{ method = "POST" }, { cost = "five", path = 1 }]
charge = { after = "success", refund_unless = "success" }

[policies.free]
strategy = "gcra"
shadow = 1
"#;
    let expected = r#"2:11: enabled: found "yes"; expected true or false
3:1: headerz: found an unknown field; expected headers, or another field
4:18: on_store_error: found "admitt"; expected one of "admit", "reject", "local_fallback"
5:23: on_misconfiguration: found 3; expected one of "reject", "as_store_error"
6:23: deny[0].addresses: found "192.0.2.1"; expected an array of addresses and networks, or { file = "path" }
6:66: deny[1].addresses[1]: found 5; expected text
9:7: store.url: found a number; expected text such as "${NAME}", or { file = "path" }
12:21: store.rejection_cache.stale: found an unknown field; expected one of staleness, capacity
16:9: policies.api.cost[0].cost: found nothing; expected cost, which is required
16:39: policies.api.cost[1].cost: found "five"; expected a whole number
16:54: policies.api.cost[1].path: found 1; expected text
17:10: policies.api.charge: found a table; expected one of "arrival", "after", "refund_unless"
19:1: policies.free.quota: found nothing; expected a quota such as "100/min"
21:10: policies.free.shadow: found 1; expected true or false"#;
    assert_eq!(mistakes(text).join("\n"), expected);
}

#[test]
fn empty_texts_and_errors_of_syntax_are_mistakes_with_their_line() {
    let parse = |text, format| Document::parse(text, format).map_err(|error| error.to_string());
    let policies = "policies: found no policy; expected at least one policy, such as [policies.api] with quota = \"100/min\"";
    let at_once = format!("1:1: {policies}");
    let twice = "found it a second time; expected each key once";
    let [quota_twice, cost_twice] =
        ["quota", "cost"].map(|field| format!("policies.api.{field}: {twice}"));
    use Format::{Json, Toml, Yaml};
    #[rustfmt::skip]
    let rows = [
        ("", Toml, &*at_once),
        ("{}", Json, policies),
        ("{}", Yaml, policies),
        ("", Yaml, policies),
        ("", Json, "1:1: found invalid syntax: EOF while parsing a value; expected valid JSON"),
        ("[policies.api\nquota = '1/s'", Toml, "1:14: found invalid syntax: unclosed table, expected `]`; expected valid TOML"),
        ("a = 1\n\na = 2", Toml, "3:1: found invalid syntax: duplicate key; expected valid TOML"),
        ("{\"store\": {},\n}", Json, "2:1: found invalid syntax: trailing comma; expected valid JSON"),
        ("policies:\n  api: [1", Yaml, "3:1: found invalid syntax: did not find expected ',' or ']'; expected valid YAML"),
        ("policies:\n  api:\n    quota: 1/s\n    quota: 2/s", Yaml, &quota_twice),
        (r#"{"policies": {"api": {"quota": "1/s", "cost": 1, "cost": 2}}}"#, Json, &cost_twice),
    ];
    for (text, format, expected) in rows {
        assert_eq!(parse(text, format), Err(expected.to_owned()), "{text:?}");
    }
}

#[test]
fn each_of_several_entries_of_the_wrong_form_is_found_at_its_own_place() {
    // A number that is none is a mistake rather than no setting.
    let text = "store.timeout = inf\n[policies.api]\nquota = '1/s'\ntier_quotas = [1, '2/s', nan, '3/x', '4/s']\nskip.paths = [5, '/a', 6]";
    let found = mistakes(text);
    let places = found
        .iter()
        .map(|mistake| mistake.split_once(": found ").expect("a mistake").0);
    let places: Vec<_> = places.collect();
    let [tiers, paths] = ["policies.api.tier_quotas", "policies.api.skip.paths"];
    let expected = [
        "1:17: store.timeout".to_owned(),
        format!("4:16: {tiers}[0]"),
        format!("4:26: {tiers}[2]"),
        format!("5:15: {paths}[0]"),
        format!("5:24: {paths}[2]"),
    ];
    assert_eq!(places, expected, "{found:?}");
}
