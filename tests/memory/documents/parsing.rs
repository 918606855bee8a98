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
    let yaml = serde_saphyr::to_string(&table).expect("YAML");
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
fn a_mistake_of_shape_is_the_first_one_at_its_place() {
    let rest = "[policies.api]\nquota = '1/s'\ncost = 'unknown'\n[policies.none]";
    #[rustfmt::skip]
    let rows = [
        ("enabled = \"yes\"\nheaderz = 1", "1:11: enabled: found \"yes\"; expected true or false"),
        ("on_store_error = \"admitt\"", "1:18: on_store_error: found \"admitt\"; expected one of \"admit\", \"reject\", \"local_fallback\""),
        ("on_misconfiguration = 3", "1:23: on_misconfiguration: found 3; expected one of \"reject\", \"as_store_error\""),
        ("deny = [{ addresses = '192.0.2.1' }]", "1:23: deny[0].addresses: found \"192.0.2.1\"; expected an array of addresses and networks, or { file = \"path\" }"),
        ("deny = [{}, { addresses = ['192.0.2.1', 5] }]", "1:41: deny[1].addresses[1]: found 5; expected text"),
        ("store.url = 17", "1:13: store.url: found a number; expected text such as \"${NAME}\", or { file = \"path\" }"),
        ("store.timeout = inf", "1:17: store.timeout: found inf; expected a duration such as \"50ms\", \"2s\" or \"1day\""),
        ("store = { rejection_cache = { stale = '1s' } }", "1:31: store.rejection_cache.stale: found an unknown field; expected one of staleness, capacity"),
        ("store.tls = 2020-01-01", "1:13: store.tls: found a date; expected a table"),
        ("skip.paths = ['/a', 6]", "1:21: skip.paths[1]: found 6; expected text"),
        ("policies.\"ä\".quota = 100", "1:22: policies.\"ä\".quota: found 100; expected a quota such as \"100/min\", \"10/s burst 20\", \"5000 per day\" or \"8 concurrent\""),
        ("policies.a.tier_quotas = ['2/s', nan]", "1:34: policies.a.tier_quotas[1]: found NaN; expected text"),
        ("policies.a.cost = [{ method = 'POST' }]", "1:20: policies.a.cost[0].cost: found nothing; expected cost, which is required"),
        ("policies.a.cost = [{ cost = 'five', path = 1 }]", "1:29: policies.a.cost[0].cost: found \"five\"; expected a whole number"),
        ("policies.a.charge = { after = 'success', refund_unless = 'success' }", "1:21: policies.a.charge: found a table; expected one of \"arrival\", \"after\", \"refund_unless\""),
    ];
    for (text, expected) in rows {
        assert_eq!(mistakes(&format!("{text}\n{rest}")), [expected], "{text}");
    }
}

#[test]
fn empty_texts_and_errors_of_syntax_are_mistakes_with_their_line() {
    let parse = |text, format| Document::parse(text, format).map_err(|error| error.to_string());
    let policies = "policies: found no policy; expected at least one policy, such as [policies.api] with quota = \"100/min\"";
    let at_once = format!("1:1: {policies}");
    let twice = "found it a second time; expected each key once";
    let quota_twice = format!("4:5: policies.api.quota: {twice}");
    let cost_twice = format!("1:50: policies.api.cost: {twice}");
    use Format::{Json, Toml, Yaml};
    #[rustfmt::skip]
    let rows = [
        ("", Toml, &*at_once),
        ("{}", Json, &at_once),
        ("{}", Yaml, &at_once),
        ("", Yaml, &at_once),
        ("# a\n", Yaml, &at_once),
        ("null", Yaml, &at_once),
        ("", Json, "1:1: found invalid syntax: EOF while parsing a value; expected valid JSON"),
        ("[policies.api\nquota = '1/s'", Toml, "1:14: found invalid syntax: unclosed table, expected `]`; expected valid TOML"),
        ("a = 1\n\na = 2", Toml, "3:1: found invalid syntax: duplicate key; expected valid TOML"),
        ("{\"store\": {},\n}", Json, "2:1: found invalid syntax: trailing comma; expected valid JSON"),
        ("policies:\n  api: [1", Yaml, "2:8: found invalid syntax: unclosed bracket '['; expected valid YAML"),
        ("policies:\n  api:\n    quota: 1/s\n    quota: 2/s", Yaml, &quota_twice),
        (r#"{"policies": {"api": {"quota": "1/s", "cost": 1, "cost": 2}}}"#, Json, &cost_twice),
    ];
    for (text, format, expected) in rows {
        assert_eq!(parse(text, format), Err(expected.to_owned()), "{text:?}");
    }
}

#[test]
fn an_unknown_field_is_answered_by_the_nearest_one_and_all_others() {
    let found = mistakes("headerz = 'draft'").remove(0);
    let begin = "1:1: headerz: found an unknown field; expected headers, or another of $schema, enabled, headers, ";
    assert!(
        found.starts_with(begin) && found.ends_with(", policies"),
        "{found}"
    );
    let found = mistakes("policies.api = { rate = '1/s' }").remove(0);
    let begin =
        "1:18: policies.api.rate: found an unknown field; expected one of quota, strategy, ";
    assert!(found.starts_with(begin), "{found}");
}

#[test]
fn a_mistake_of_shape_or_meaning_has_its_place_in_each_format() {
    let of = |format, text: &str| {
        let document = Document::parse(text, format);
        let built = document.and_then(|document| document.layer(&registry()));
        let error = built.expect_err(text).to_string();
        let place = |line: &str| line.split(": found ").next().map(str::to_owned);
        error.lines().filter_map(place).collect::<Vec<_>>()
    };
    use Format::{Json, Toml, Yaml};
    #[rustfmt::skip]
    let rows = [
        (Toml, "# ö\n[policies.\"ä\"]\nquota = 5", "3:9: policies.\"ä\".quota"),
        (Yaml, "# ö\npolicies:\n  ä: {quota: 5}\n", "3:14: policies.\"ä\".quota"),
        (Json, "\u{feff}{\"policies\":\r\n\t{\"ä\":\t{ \"quota\": 5 }}}", "2:19: policies.\"ä\".quota"),
        (Yaml, "policies:\n  api:\n    quota: 1/s\n    shadov: true\n", "4:5: policies.api.shadov"),
        (Json, "{\"policies\": {\n  \"api\": {\n    \"shadov\": true}}}", "3:5: policies.api.shadov"),
        (Yaml, "defaults: 1", "1:1: defaults"),
        // What one value says.
        (Yaml, "policies:\n  a: &a\n    quota: 1/s\n    key: usr\n  b: *a\n", "4:10: policies.a.key 4:10: policies.b.key"),
        (Json, "{\"policies\":\n{\"a\":\n{\"quota\": \"1/s\", \"key\": \"usr\"},\n\"b\": {}}}", "4:6: policies.b.quota"),
        (Toml, "[policies.a]\n[policies.b]\nkey = 'usr'", "1:1: policies.a.quota 2:1: policies.b.quota"),
        (Yaml, "policies:\n  a: {}\n  b:\n    key: x\n", "2:6: policies.a.quota 4:5: policies.b.quota"),
        (Yaml, "skip:\n  paths:\n  - /a\n  - b\npolicies: {a: {quota: 1/s, cost: 2, key: usr}}", "4:5: skip.paths[1] 5:34: policies.a.cost 5:42: policies.a.key"),
        (Json, "{\"skip\": {\"paths\": [\"/a\", \"b\"]},\n\"policies\": {\"a\": {\"quota\": \"1/s\", \"key\": \"usr\"}}}", "1:27: skip.paths[1] 2:43: policies.a.key"),
    ];
    for (format, text, expected) in rows {
        assert_eq!(of(format, text).join(" "), expected, "{text}");
    }
}

#[test]
fn what_yaml_says_is_what_yaml_1_2_says() {
    let read = |setting: &str| {
        let text = format!("policies: {{api: {{quota: 1/s}}}}\n{setting}\n");
        let document = Document::parse(&text, Format::Yaml);
        document.map_err(|error| error.to_string())
    };
    for (value, expected) in [
        ("true", Some(true)),
        ("TRUE", Some(true)),
        ("False", Some(false)),
        ("~", None),
        ("", None),
        ("null", None),
    ] {
        let document = read(&format!("enabled: {value}")).expect(value);
        assert_eq!(document.enabled, expected, "{value}");
    }
    for value in ["no", "on", "'true'", "y", "0", "[]", "!!str true"] {
        let error = read(&format!("enabled: {value}")).expect_err(value);
        assert!(error.contains("2:"), "{error}");
        assert!(error.contains("expected true or false"), "{error}");
    }
    let number = |value: &str| {
        let document = read(&format!("store: {{connections: {value}}}"))?;
        Ok::<_, String>(document.store.and_then(|store| store.connections))
    };
    for (value, expected) in [
        ("17", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("+5", 5),
        ("0b11", 3),
    ] {
        assert_eq!(number(value), Ok(Some(expected)), "{value}");
    }
    for value in [
        "017",
        "1_000",
        "'17'",
        "1e3",
        ".inf",
        ".nan",
        "-1",
        "0X1F",
        "2020-01-01",
        "18446744073709551616",
    ] {
        let error = number(value).expect_err(value);
        assert!(error.contains("expected a whole number"), "{error}");
    }
    let schema = |value: &str| read(&format!("$schema: {value}")).map(|document| document.schema);
    for (value, expected) in [
        ("no", "no"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("!!str 5", "5"),
        ("'a''b'", "a'b"),
        ("\"\\u00e9\\x41\\t\"", "éA\t"),
        ("|\n  a\n  b", "a\nb\n"),
        (">-\n  a\n  b", "a b"),
        ("&a b # c", "b"),
    ] {
        assert_eq!(schema(value), Ok(Some(expected.to_owned())), "{value}");
    }
    for (text, expected) in [
        (
            "a: !x 5",
            "1:7: found a tag; expected a value without a tag",
        ),
        (
            "a: !!map {}",
            "1:10: found a tag; expected a value without a tag",
        ),
        (
            "a: 1\n---\nb: 2",
            "2:1: found a second document; expected one document",
        ),
        (
            "a: *b",
            "1:4: found invalid syntax: while parsing node, found unknown anchor; expected valid YAML",
        ),
        (
            "a: &a [*a]",
            "1:8: found an alias within what it stands for; expected an alias of what ended before it",
        ),
        (
            "? [a]\n: b",
            "1:3: found a key that is no text; expected text",
        ),
        ("a: {<<: {}}", "1:1: a: found an unknown field; "),
        (
            "policies: {a: &a {quota: 1/s}, b: {<<: *a}}",
            "1:36: policies.b.<<: found an unknown field",
        ),
    ] {
        let error = Document::parse(text, Format::Yaml)
            .expect_err(text)
            .to_string();
        assert!(
            error.starts_with(&expected.replace(".<<", ".\"<<\"")),
            "{text}: {error}"
        );
    }
}

#[test]
fn json_is_json_and_what_it_says() {
    let schema = |value: &str| {
        let text = format!(
            "\u{feff}{{\t\"$schema\"\n:\n\t{value} , \"policies\" :{{\"\\u0061pi\":{{\"quota\":\"1/s\"}}}}}}\r\n"
        );
        let document = Document::parse(&text, Format::Json);
        document
            .map(|document| document.schema)
            .map_err(|error| error.to_string())
    };
    for (value, expected) in [
        (r#""\"\\\/\b\f\n\r\t\u00e9""#, "\"\\/\u{8}\u{c}\n\r\té"),
        (r#""\ud83d\ude00\u0000""#, "😀\0"),
        (
            "\"# not: a, [comment\u{2028}\u{85}\u{a0}\"",
            "# not: a, [comment\u{2028}\u{85}\u{a0}",
        ),
        (
            "\"\u{7f}\u{80}\u{9f}\u{feff}\u{ffff}\"",
            "\u{7f}\u{80}\u{9f}\u{feff}\u{ffff}",
        ),
        (r#""<<""#, "<<"),
        (r#""*a &b !c %d @e `f - g""#, "*a &b !c %d @e `f - g"),
        (r#""""#, ""),
    ] {
        assert_eq!(schema(value), Ok(Some(expected.to_owned())), "{value}");
    }
    assert_eq!(schema("null"), Ok(None));
    for value in [
        "'a'",
        "a",
        "|",
        "&a \"b\"",
        "\"a\" # b",
        "\"\\x41\"",
        "\"\\ud83d\"",
        "\"a\tb\"",
        "\"a\nb\"",
        "[1,]",
        "01",
        "/**/ 1",
        "1e400",
        "1\u{c}",
        "",
    ] {
        let error = schema(value).expect_err(value);
        assert!(error.contains("expected valid JSON"), "{value}: {error}");
    }
}
