//! From text to a document, and its mistakes.

use crate::documents::support::*;

/// Every field.
pub(crate) const EVERY_FIELD: &str = include_str!("every_field.toml");

#[test]
fn a_document_with_every_field_is_the_same_in_each_format() {
    let table: toml::Table = EVERY_FIELD.parse().expect("TOML");
    let json = serde_json::to_string_pretty(&table).expect("JSON");
    document(EVERY_FIELD);
    // In the order of all three.
    let expected = document(&toml::to_string(&table).expect("TOML"));
    // JSON is YAML.
    for (text, format) in [(json.clone(), Format::Json), (json, Format::Yaml)] {
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
fn the_first_mistake_of_shape_is_reported_at_its_place_in_each_format() {
    let texts = |path: &str, value: &str| {
        let mut keys = path.split('.').rev();
        let last = keys.next().expect("a key");
        let toml = format!("\n{path} = {value}");
        let quote = |key: &str| format!("\"{key}\"");
        let within = |inner: String, key: &str| format!("{{{}: {inner}}}", quote(key));
        let inner = format!("{{{}: {}}}", quote(last), value.replace('=', ":"));
        (toml, keys.fold(inner, within))
    };
    #[rustfmt::skip]
    let rows = [
        ("enabled", r#""yes""#, r#"enabled: found "yes"; expected true or false"#),
        ("headerz", r#""draft""#, "headerz: found an unknown field; expected headers, or another of $schema, enabled, "),
        ("on_store_error", r#""admitt""#, r#"on_store_error: found "admitt"; expected admit, or another of admit, reject, local_fallback"#),
        ("policies.api.quota", "[]", r#"policies.api.quota: found an array; expected a quota such as "100/min""#),
        ("policies.api.shadow", "17", "policies.api.shadow: found 17; expected true or false"),
        ("policies.api.quotta", r#""1/s""#, "policies.api.quotta: found an unknown field; expected quota, or another of quota, strategy, "),
        ("policies.api.cost", "-1", "policies.api.cost: found -1; expected "),
        ("policies.api.cost", r#"[{"cost" = "five"}]"#, r#"policies.api.cost[0].cost: found "five"; expected a whole number"#),
        ("policies.api.cost", r#"[{"method" = "POST"}]"#, "policies.api.cost[0].cost: found nothing; expected cost, which is required"),
        ("policies.api.skip", r#"{"paths" = [["a"]]}"#, "policies.api.skip.paths[0]: found an array; expected text"),
        ("policies.api.lease", r#"{"max_units" = 2, "ttl" = {}}"#, "policies.api.lease.ttl: found a table; expected a duration"),
        ("store", "[[1]]", "store[0]: "),
        ("store.timeout", "{}", "store.timeout: found a table; expected a duration"),
    ];
    for (path, value, expected) in rows {
        let (toml, json) = texts(path, value);
        for (text, format) in [
            (&toml, Format::Toml),
            (&json, Format::Yaml),
            (&json, Format::Json),
        ] {
            let error = Document::parse(text, format).expect_err(text);
            let [mistake] = error.mistakes() else {
                panic!("{text}: {error}");
            };
            if path == "store" && format != Format::Toml {
                // What is no table is found there at once.
                assert_eq!(mistake.path(), "store");
            } else {
                assert!(
                    mistake.to_string().starts_with(expected),
                    "{text}: {mistake}"
                );
            }
            let line = if format == Format::Toml { 2 } else { 1 };
            let position = mistake.position().expect(text);
            assert_eq!(position.line, line, "{text}: {error}");
            assert!(
                position.column > 1 || path == "headerz" && line == 2,
                "{text}: {error}"
            );
        }
    }
}

#[test]
fn a_mistake_of_meaning_has_its_place_in_each_format() {
    let toml = "[policies.api]\nquota = '100/mins x'\ntier_quotas = ['1/s', '2/x']\n[skip]\npaths = ['a']\n[policies.free]\n";
    let yaml = "policies:\n  api:\n    quota: 100/mins x\n    tier_quotas: [1/s, 2/x]\n  free: {}\nskip:\n  paths: [a]\n";
    let json = "{\"policies\": {\"api\": {\n\"quota\": \"100/mins x\",\n\"tier_quotas\": [\"1/s\", \"2/x\"]},\n\"free\": {}},\n\"skip\": {\"paths\": [\"a\"]}}";
    let rows = [
        (
            toml,
            Format::Toml,
            "2:9 quota, 3:23 tier_quotas[1], 5:10 paths[0], 6:1 quota",
        ),
        (
            yaml,
            Format::Yaml,
            "3:12 quota, 4:24 tier_quotas[1], 5:9 quota, 7:11 paths[0]",
        ),
        (
            json,
            Format::Json,
            "2:10 quota, 3:24 tier_quotas[1], 4:9 quota, 5:20 paths[0]",
        ),
    ];
    for (text, format, expected) in rows {
        let document = Document::parse(text, format).expect(text);
        let error = document.layer(&registry()).expect_err(text);
        let places = error.mistakes().iter().map(|mistake| {
            let field = mistake.path().rsplit('.').next().unwrap_or_default();
            format!("{} {field}", mistake.position().expect(text))
        });
        assert_eq!(places.collect::<Vec<_>>().join(", "), expected, "{error}");
    }
}

#[test]
fn errors_of_syntax_are_mistakes_with_their_line() {
    use Format::{Json, Toml, Yaml};
    #[rustfmt::skip]
    let rows = [
        ("[policies.api\nquota = '1/s'", Toml, "1:14: found invalid syntax: unclosed table, expected `]`; expected valid TOML"),
        ("a = 1\n\na = 2", Toml, "3:1: found invalid syntax: duplicate key; expected valid TOML"),
        ("{\"store\": {},\n}", Json, "2:1: found invalid syntax: key must be a string; expected valid JSON"),
        ("{\"é\": 'x'}", Json, "1:7: found invalid syntax: expected value; expected valid JSON"),
        ("{store: {}}", Json, "1:2: found invalid syntax: key must be a string"),
        ("policies:\n  api: [1", Yaml, "found invalid syntax"),
        ("policies:\n  api: !x 1", Yaml, "2:11: found a tag; expected a value without a tag"),
        ("enabled: true\n---\nenabled: true", Yaml, "found a second document; expected one document"),
        ("policies:\n  api:\n    quota: 1/s\n    quota: 2/s", Yaml, "4:5: found a key a second time; expected each key once"),
        (r#"{"policies": {"api": {"quota": "1/s", "cost": 1, "cost": 2}}}"#, Json, "1:50: found a key a second time"),
    ];
    for (text, format, expected) in rows {
        let error = Document::parse(text, format).expect_err(text).to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn a_document_without_policies_is_a_mistake_of_the_limiter() {
    for (text, format) in [
        ("", Format::Toml),
        ("", Format::Yaml),
        ("{}", Format::Yaml),
        ("{}", Format::Json),
    ] {
        let document = Document::parse(text, format).expect(text);
        let error = document.limiter(&registry()).expect_err(text).to_string();
        assert_contains(
            &error,
            ["1:1: policies: found no policy; expected at least one policy"],
        );
    }
}

#[test]
fn texts_are_read_as_their_language_says() {
    let quota = |text: &str, format| {
        let document = Document::parse(text, format).expect(text);
        document.policies["api"].quota.clone().expect("a quota")
    };
    #[rustfmt::skip]
    let rows = [
        ("\u{feff}[policies.api]\nquota = \"1\\u002Fs\"", Format::Toml, "1/s"),
        ("\u{feff}policies:\n  api: {quota: 1/s}", Format::Yaml, "1/s"),
        ("{\t\"policies\":\t{\"api\":\n\t{\"quota\": \"1\\/s\"}}}", Format::Json, "1/s"),
        (r#"{"policies": {"api": {"quota": "\ud83d\ude00"}}}"#, Format::Json, "😀"),
        ("x: &x {quota: 1/s}", Format::Yaml, ""),
        ("policies: {api: &x {quota: 1/s}, other: *x}", Format::Yaml, "1/s"),
        ("policies:\n  api:\n    quota: >-\n      1/s\n", Format::Yaml, "1/s"),
    ];
    for (text, format, expected) in rows {
        if expected.is_empty() {
            assert!(Document::parse(text, format).is_err(), "{text}");
        } else {
            assert_eq!(quota(text, format), expected, "{text}");
        }
    }
}
