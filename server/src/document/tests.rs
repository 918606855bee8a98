use std::{collections::HashSet, thread::Builder};

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::Policy;

use super::{name::PolicyPath, *};
use crate::rules::{CountedBy, Limit, Rule, Unit};

fn read(text: &str) -> Result<Rules, Mistakes> {
    read_all(&[text], false)
}

/// Reads texts as the files `1.yaml`, `2.yaml` and so on.
fn read_all(texts: &[&str], merge_domains: bool) -> Result<Rules, Mistakes> {
    let names: Vec<_> = (1..=texts.len()).map(|n| format!("{n}.yaml")).collect();
    let texts = texts.iter().zip(&names);
    let texts: Vec<_> = texts.map(|(text, file)| Text { file, text }).collect();
    parse(&texts, Options { merge_domains })
}

/// Asserts that rules that are written are read as the same.
fn assert_written(rules: &Rules) {
    let written = write(rules);
    let again = read(&written).expect(&written);
    assert_eq!(format!("{again:#?}"), format!("{rules:#?}"), "{written}");
}

/// The rules of the only domain, which are also written and read again.
fn rules(text: &str) -> Vec<Rule> {
    let rules = read(text).expect("a document without mistakes");
    assert_written(&rules);
    let mut domains = rules.domains.into_values();
    domains.next().expect("a domain")
}

/// The mistakes of a document, one a line.
fn mistakes(text: &str) -> String {
    read(text).map(drop).expect_err(text).to_string()
}

/// Asserts how the mistakes of documents begin: each case is what a document is made of, and this beginning.
fn assert_mistakes(document: impl Fn(&str) -> String, cases: &[&str]) {
    for case in cases {
        let (text, expected) = case.split_once(" => ").expect("a text and a mistake");
        let found = mistakes(&document(text));
        assert!(found.starts_with(expected), "{case}\n{found}");
    }
}

/// How the first limit of a rule is counted.
fn counted(rule: &Rule) -> &CountedBy {
    match rule.limits.first() {
        Some(Limit {
            counted: Some(counted),
            ..
        }) => counted,
        other => panic!("{other:?}"),
    }
}

fn policy(rule: &Rule) -> &Policy {
    &counted(rule).policy
}

/// All policies that count.
fn policies<'a>(rules: &'a [Rule], all: &mut Vec<&'a Policy>) {
    for rule in rules {
        for limit in &rule.limits {
            if let Some(counted) = &limit.counted
                && counted.requests_per_unit > 0
            {
                all.push(&counted.policy);
            }
        }
        policies(&rule.descriptors, all);
    }
}

/// A document of our own with one limit.
fn own(limit: &str) -> String {
    format!(
        "format: tollgate/v1\ndomain: d\ndescriptors:\n  - key: k\n    limits:\n      - {limit}\n"
    )
}

/// A document of the reference format with one descriptor.
fn reference(descriptor: &str) -> String {
    format!("domain: d\ndescriptors:\n  - {descriptor}\n")
}

#[test]
fn a_tree_has_the_keys_values_and_limits_of_its_document() {
    let rules = rules(
        "
domain: shop
descriptors:
  - key: user
    value: alice
    descriptors:
      - key: path
        rate_limit: { unit: second, requests_per_unit: 5 }
      - key: path
        value: /buy
        rate_limit:
          unit: HOUR
          requests_per_unit: 10
          name: buy
          replaces: [{ name: user }, { name: tenant }]
        detailed_metric: true
        metadata: { team: shop, levels: [1, 2.5, { deep: null }] }
  - key: user
    value: mallory
  - key: user
    rate_limit: { unlimited: true }
    shadow_mode: yes
    quota_mode: on
    value_to_metric: true
  - key: file
    value: a/*
    share_threshold: true
",
    );
    let [alice, mallory, user, file] = &*rules else {
        panic!("{rules:?}");
    };
    assert_eq!(
        (&*alice.key, alice.value.as_deref(), alice.limits.len()),
        ("user", Some("alice"), 0)
    );
    assert_eq!(alice.descriptors[0].value, None);
    assert_eq!(policy(&alice.descriptors[0]).quota().to_string(), "5/s");
    let buy = &alice.descriptors[1];
    assert_eq!(counted(buy).requests_per_unit, 10);
    assert_eq!(counted(buy).unit, Some(Unit::Hour));
    assert_eq!(buy.limits[0].name.as_deref(), Some("buy"));
    assert_eq!(buy.limits[0].replaces, ["user", "tenant"]);
    assert!(buy.detailed_metric);
    let metadata = json!({ "team": "shop", "levels": [1, 2.5, { "deep": null }] });
    assert_eq!(buy.metadata.clone().map(Value::Object), Some(metadata));
    assert!(mallory.limits.is_empty() && mallory.descriptors.is_empty());
    assert!(matches!(&*user.limits, [Limit { counted: None, .. }]));
    assert!(user.shadow_mode && user.quota_mode && user.value_to_metric);
    assert!(file.share_threshold);
}

#[test]
fn limits_of_the_reference_format_are_windows_from_1970_that_charge_rejected_requests() {
    for (unit, expected) in [
        ("second", "7/s"),
        ("minute", "7/min"),
        ("hour", "7/h"),
        ("day", "7/day"),
        ("week", "7/week"),
        ("month", "7/month"),
        ("year", "7/year"),
    ] {
        let limit = format!("{{ key: k, rate_limit: {{ unit: {unit}, requests_per_unit: 7 }} }}");
        let rules = rules(&reference(&limit));
        let policy = policy(&rules[0]);
        let strategy = policy.strategy_config_text();
        assert_eq!(policy.quota().to_string(), expected);
        assert_eq!(strategy.as_deref(), Some("calendar_window from_epoch"));
        assert!(policy.charges_rejected());
        assert!(counted(&rules[0]).independent);
    }
}

#[test]
fn a_document_is_read_however_its_yaml_is_written() {
    let plain = "domain: d\ndescriptors:\n- key: k\n  value: v\n";
    let expected = format!("{:?}", read(plain).expect("rules"));
    let comments = format!(
        "domain:\n{}  d\ndescriptors:\n- key: k\n  value: v",
        "# A line.\n".repeat(100)
    );
    for text in [
        plain.replace('\n', "\r\n"),
        format!("\u{feff}{plain}"),
        format!("%YAML 1.1\n---\n{plain}...\n---\n~\n---\n"),
        "{domain: d, descriptors: [{key: k, value: v}]}".to_owned(),
        r#"{"domain":"d","descriptors":[{"key":"k","value":"v"}]}"#.to_owned(),
        "? domain\n: d\n? descriptors\n:\n    - ? key\n      : k\n      value: >-\n        v\n"
            .to_owned(),
        comments,
    ] {
        let rules = read(&text).expect(&text);
        assert_eq!(format!("{rules:?}"), expected, "{text}");
    }
}

#[test]
fn values_keep_their_text() {
    for (written, value) in [
        ("1.10", Some("1.10")),
        ("-0", Some("-0")),
        ("007", Some("007")),
        ("0x1F", Some("0x1F")),
        ("1_000", Some("1_000")),
        ("1e3", Some("1e3")),
        (".inf", Some(".inf")),
        ("2024-01-01", Some("2024-01-01")),
        ("12:30:45", Some("12:30:45")),
        ("true", Some("true")),
        ("No", Some("No")),
        ("'no'", Some("no")),
        ("\"\\x41\"", Some("A")),
        ("'null'", Some("null")),
        ("'~'", Some("~")),
        ("!!str null", Some("null")),
        ("!!str 5", Some("5")),
        ("a b", Some("a b")),
        ("null", None),
        ("~", None),
        ("''", None),
        ("", None),
    ] {
        let rules = rules(&reference(&format!("{{ key: 404, value: {written} }}")));
        assert_eq!(rules[0].key, "404");
        assert_eq!(rules[0].value.as_deref(), value, "{written}");
    }
}

#[test]
fn numbers_and_booleans_are_those_of_yaml_1_1() {
    for (text, number) in [
        ("0", 0),
        ("", 0),
        ("null", 0),
        ("1_000", 1_000),
        ("0x10", 16),
        ("0b11", 3),
        ("010", 8),
        ("0o17", 15),
        ("+5", 5),
        ("'5'", 5),
        ("4294967295", u64::from(u32::MAX)),
    ] {
        let limit = format!("{{ key: k, rate_limit: {{ unit: day, requests_per_unit: {text} }} }}");
        let rules = rules(&reference(&limit));
        assert_eq!(counted(&rules[0]).requests_per_unit, number, "{text}");
    }
    for (text, expected) in [
        ("true", true),
        ("Yes", true),
        ("y", true),
        ("ON", true),
        ("false", false),
        ("no", false),
        ("off", false),
        ("~", false),
        ("", false),
    ] {
        let rules = rules(&reference(&format!("{{ key: k, shadow_mode: {text} }}")));
        assert_eq!(rules[0].shadow_mode, expected, "{text}");
    }
}

#[test]
fn metadata_is_any_json() {
    let rules = rules(
        "
domain: d
descriptors:
  - key: k
    metadata:
      list: [1, -2, 2.5, 0x10, 010, yes, null, '1', a, [], {}]
      404: number
      text: |
        one
        two
      deep: { a: { b: [{ c: ~ }] } }
",
    );
    let expected = json!({
        "list": [1, -2, 2.5, 16, 8, true, null, "1", "a", [], {}],
        "404": "number",
        "text": "one\ntwo\n",
        "deep": { "a": { "b": [{ "c": null }] } },
    });
    assert_eq!(rules[0].metadata.clone().map(Value::Object), Some(expected));
    let empty = self::rules(&reference("{ key: k, metadata: {} }"));
    assert_eq!(empty[0].metadata, None);
}

#[test]
fn a_domain_of_two_documents_is_a_mistake_unless_domains_are_merged() {
    let one = "domain: d\ndescriptors: [{ key: a }]";
    let two = "domain: d\ndescriptors: [{ key: b, value: x* }]";
    let error = read_all(&[one, two], false).expect_err("twice");
    assert!(
        error
            .to_string()
            .starts_with("2.yaml:1:9: duplicate domain \"d\", which is at 1.yaml:1:9 already"),
        "{error}"
    );
    let several = "domain: a\n---\ndomain: b\ndescriptors:\n---\n";
    let several = read_all(&[several, "domain: c"], false).expect("no mistake");
    assert!(several.domains.keys().eq(["a", "b", "c"]));
    let merged = read_all(&[one, two], true).expect("merged");
    let keys: Vec<_> = merged.domains["d"].iter().map(|rule| &*rule.key).collect();
    assert_eq!(keys, ["a", "b"]);
    let error = read_all(&[one, two, one], true).expect_err("a twice");
    assert!(
        error
            .to_string()
            .starts_with("3.yaml:2:15: duplicate rule \"a\", which is at 1.yaml:2:15 already"),
        "{error}"
    );
}

#[test]
fn anchors_stand_for_their_values_and_maps_are_merged() {
    let rules = rules(
        "
domain: d
descriptors:
  - key: a
    rate_limit: &limit { unit: minute, requests_per_unit: 5 }
  - key: b
    rate_limit: *limit
  - key: c
    rate_limit: { <<: *limit, requests_per_unit: 6 }
",
    );
    let quotas: Vec<_> = rules
        .iter()
        .map(|rule| policy(rule).quota().to_string())
        .collect();
    assert_eq!(quotas, ["5/min", "5/min", "6/min"]);
}

#[test]
fn each_mistake_of_the_reference_format_has_its_position() {
    let limit = |limit: &str| reference(&format!("{{ key: k, rate_limit: {{ {limit} }} }}"));
    assert_mistakes(
        str::to_owned,
        &[
            " => 1.yaml: the file has no document",
            "# None.\n---\n--- ~ => 1.yaml: the file has no document",
            "domain: '' => 1.yaml:1:9: the document has no domain",
            "descriptors: [] => 1.yaml:1:1: the document has no domain",
            "domain: d\ndescriptors: [ => 1.yaml:2:14: invalid YAML: unclosed bracket",
            "domain: d\ndomain: e => 1.yaml:2:1: the key \"domain\" for a second time",
            "0.25: d\ndomain: d => 1.yaml:1:1: unknown key \"0.25\"; expected one of format, domain, descriptors",
            "domain: d\n[a]: d => 1.yaml:2:1: expected a single value",
            "domain: d\ndescriptors: 5 => 1.yaml:2:14: expected a list",
            "- domain: d => 1.yaml:1:1: expected a map",
            "domain: d\ndescriptors: [*a] => 1.yaml:2:15: ",
        ],
    );
    assert_mistakes(
        reference,
        &[
            "value: v => 1.yaml:3:5: the rule has no key",
            "{ key: , value: v } => 1.yaml:3:5: the rule has no key",
            "null => 1.yaml:3:5: expected a map",
            "key: a* => 1.yaml:3:10: a * in the key",
            "{ key: k }\n  - { key: k } => 1.yaml:4:5: duplicate rule \"k\", which is at 1.yaml:3:5",
            "{ key: k, value: v }\n  - { key: k, value: v } => 1.yaml:4:5: duplicate rule \"k\" = \"v\"",
            "{ key: k, ratelimit: 5 } => 1.yaml:3:15: unknown key \"ratelimit\"",
            "{ key: k, shadow_mode: maybe } => 1.yaml:3:28: expected true or false",
            "{ key: k, shadow_mode: [] } => 1.yaml:3:28: expected a single value",
            "{ key: k, value: {} } => 1.yaml:3:22: expected a single value",
            "{ key: k, share_threshold: true } => 1.yaml:3:32: share_threshold of a value without wildcards",
            "{ key: k, metadata: 5 } => 1.yaml:3:25: expected a map",
            "{ key: k, metadata: { a: .nan } } => 1.yaml:3:30: \".nan\"; expected a number that JSON has",
            "{ key: !secret k } => 1.yaml:3:20: the tag \"!secret\"; expected a value without a tag",
            "{ key: k, limits: [] } => 1.yaml:3:23: limits in the reference format; expected rate_limit, or format: tollgate/v1",
        ],
    );
    assert_mistakes(
        limit,
        &[
            "requests_per_unit: 5 => 1.yaml:3:27: invalid unit \"\"",
            "unit: foo, requests_per_unit: 5 => 1.yaml:3:35: invalid unit \"foo\"; expected one of second",
            "unit: day, requestsperunit: 5 => 1.yaml:3:40: unknown key \"requestsperunit\"",
            "unit: day, requests_per_unit: -1 => 1.yaml:3:59: expected a number from 0 to 4294967295",
            "unit: day, requests_per_unit: 4294967296 => 1.yaml:3:59: expected a number",
            "unit: day, requests_per_unit: 1.5 => 1.yaml:3:59: expected a number",
            "unit: day, requests_per_unit: five => 1.yaml:3:59: expected a number",
            "unlimited: true, unit: day => 1.yaml:3:52: a unit of an unlimited limit",
            "unit: day, requests_per_unit: 5, name: a, replaces: [{ name: a }] => 1.yaml:3:82: a limit that replaces itself",
            "unit: day, requests_per_unit: 5, replaces: [{ name: }] => 1.yaml:3:73: an empty name in replaces",
        ],
    );
}

#[test]
fn of_each_file_the_first_mistake_of_shape_or_all_mistakes_of_meaning_are_reported() {
    let shape = "domain: d\ndescriptors: [{ key: a, kez: b }, { value: c, vale: d }]";
    let meaning = "domain: e
descriptors:
  - key: k
    rate_limit: { unit: foo }
  - value: v
    descriptors: &rules
      - { key: a*, share_threshold: true }
  - { key: k, descriptors: *rules }
---
descriptors: []";
    let error = read_all(&["domain: [", shape, meaning], false).expect_err("mistakes");
    let places = error.mistakes().iter().map(|mistake| {
        let position = mistake.position.expect("a position");
        format!("{}:{position}", mistake.file)
    });
    assert_eq!(
        places.collect::<Vec<_>>(),
        [
            "1.yaml:1:9",
            "2.yaml:2:25",
            "3.yaml:4:25",
            "3.yaml:5:5",
            "3.yaml:7:16",
            "3.yaml:7:16",
            "3.yaml:7:37",
            "3.yaml:7:37",
            "3.yaml:8:5",
            "3.yaml:10:1"
        ],
        "{error}"
    );
    let many = format!("domain: d\ndescriptors: [{}]", "{}, ".repeat(500));
    assert_eq!(read(&many).expect_err("many").mistakes().len(), 100);
}

#[test]
fn a_limit_of_our_own_says_how_it_is_counted() {
    for case in [
        "quota: 100/min => 100/min, gcra",
        "{ quota: 10/s burst 20, on_reject: charge } => 10/s burst 20, gcra, charged",
        "{ quota: 5000/month, calendar: true, on_reject: free } => 5000/month, calendar_window utc",
        "{ quota: 5/week, strategy: calendar_window zone Europe/Berlin week_starts_on sunday } => 5/week, calendar_window zone Europe/Berlin week_starts_on sunday",
        "{ quota: 7/30s, strategy: calendar_window from_epoch, independent: true } => 7/30s, calendar_window from_epoch, independent",
        "{ quota: 7/s, strategy: token_bucket } => 7/s, token_bucket",
        "{ quota: 7/s, strategy: fixed_window } => 7/s, fixed_window",
        "{ quota: 7/s, strategy: list_window } => 7/s, list_window",
        "{ quota: 7/s, strategy: sliding_log } => 7/s, sliding_log",
        "{ quota: 7/s, strategy: sliding_window buckets 20 } => 7/s, sliding_window buckets 20",
    ] {
        let (text, expected) = case.split_once(" => ").expect("a limit and how it counts");
        let rules = rules(&own(text));
        let policy = policy(&rules[0]);
        let strategy = policy.strategy_config_text().expect("a built-in strategy");
        let mut found = format!("{}, {strategy}", policy.quota());
        if policy.charges_rejected() {
            found += ", charged";
        }
        if counted(&rules[0]).independent {
            found += ", independent";
        }
        assert_eq!(found, expected, "{text}");
    }
    let rules = rules(&own("{ quota: 7/30s }"));
    assert_eq!(counted(&rules[0]).unit, None);
}

#[test]
fn a_descriptor_of_our_own_has_several_limits() {
    let rules = rules(&own("quota: 100/min
      - { name: monthly, quota: 5000/month, calendar: true, replaces: [a, b] }
      - { name: free, unlimited: true }"));
    let mut all = Vec::new();
    policies(&rules, &mut all);
    let names: Vec<_> = all.iter().map(|policy| policy.name()).collect();
    assert_eq!(names, ["d/k", "d/k#monthly"]);
    assert_eq!(rules[0].limits[1].replaces, ["a", "b"]);
    assert_eq!(rules[0].limits[2].name.as_deref(), Some("free"));
}

#[test]
fn each_mistake_of_our_own_format_has_its_position() {
    assert_mistakes(
        str::to_owned,
        &[
            "format: tollgate/v2\ndomain: d => 1.yaml:1:9: unknown format; expected tollgate/v1",
            "format: tollgate/v1\ndomain: d\ndescriptors: [{ key: k, value: '' }] => 1.yaml:3:32: an empty value",
            "format: tollgate/v1\ndomain: d\ndescriptors: [{ key: k, rate_limit: {} }] => 1.yaml:3:37: rate_limit in tollgate's format; expected limits",
        ],
    );
    assert_mistakes(
        own,
        &[
            "name: a => 1.yaml:6:9: a limit without a quota",
            "quota: 5/fortnight => 1.yaml:6:16: quota: \"5/fortnight\"",
            "quota: 5 concurrent => 1.yaml:6:16: quota: \"5 concurrent\"; expected a rate",
            "quota: 0/30s => 1.yaml:6:16: quota: \"0/30s\"; expected a quota of 0 per second",
            "{ quota: 0/s, strategy: gcra } => 1.yaml:6:33: strategy of a quota of 0",
            "quota: 9999999999999999/s => 1.yaml:6:16: quota under \"gcra\"",
            "{ quota: 5/s burst 9, strategy: fixed_window } => 1.yaml:6:18: quota under \"fixed_window\"",
            "{ quota: 5/s, strategy: leaky } => 1.yaml:6:33: strategy: an unknown strategy \"leaky\"; expected one of gcra,",
            "{ quota: 5/s, strategy: ban 10min } => 1.yaml:6:33: strategy: \"ban 10min\"",
            "{ quota: 5/s, strategy: sliding_window buckets x } => 1.yaml:6:33: strategy",
            "{ quota: 5/day, strategy: calendar_window zone Europe/Atlantis } => 1.yaml:6:18: quota under \"calendar_window zone Europe/Atlantis\"",
            "{ quota: 5/s, strategy: gcra, calendar: true } => 1.yaml:6:49: calendar together with strategy",
            "{ quota: 5/30s, calendar: true } => 1.yaml:6:18: quota: \"5/30s\"; expected a period of one second",
            "{ quota: 5/s, on_reject: drop } => 1.yaml:6:34: on_reject: \"drop\"; expected charge or free",
            "{ unlimited: true, quota: 5/s } => 1.yaml:6:35: quota of an unlimited limit",
            "{ quota: 5/s, name: a, replaces: [a] } => 1.yaml:6:43: a limit that replaces itself",
            "{ quota: 5/s, replaces: [''] } => 1.yaml:6:34: an empty name in replaces",
            "quota: 5/s\n      - quota: 6/s => 1.yaml:7:9: a limit without a name that is not the first",
            "{ quota: 5/s, name: a }\n      - { quota: 6/s, name: a } => 1.yaml:7:29: a name that another limit",
        ],
    );
}

#[test]
fn counts_are_stored_under_the_path_of_a_rule_and_not_its_limit() {
    let named = |value: &str, limit: &str| {
        let text = format!("{{ key: user, value: {value}, rate_limit: {{ {limit} }} }}");
        policy(&rules(&reference(&text))[0]).name().to_owned()
    };
    let first = named("a/b", "unit: day, requests_per_unit: 5");
    assert_eq!(first, "d/user=a%2Fb");
    assert_eq!(
        first,
        named("a/b", "unit: hour, requests_per_unit: 6, name: x")
    );
    let long = named(&"x".repeat(100), "unit: day, requests_per_unit: 5");
    assert_eq!(long.len(), 64);
    assert!(
        long.starts_with("d/user=xxxxxxxxxxxxxxxxxxxxxxxx~"),
        "{long}"
    );
}

#[test]
fn files_depth_levels_and_descriptors_are_bounded() {
    let nested = |levels: usize| {
        let begin = "{ key: k, descriptors: [".repeat(levels - 1);
        format!(
            "domain: d\ndescriptors: [{begin}{{ key: k }}{}]",
            "]}".repeat(levels - 1)
        )
    };
    // Without optimization a level takes 75 KB.
    let stack = Builder::new().stack_size(8 << 20);
    let deep = stack.spawn(move || {
        assert!(read(&nested(30)).is_ok());
        assert!(mistakes(&nested(31)).contains("expected at most 30 levels"));
        assert!(mistakes(&nested(50)).contains("expected at most 64 levels"));
    });
    deep.expect("a thread").join().expect("no panic");
    let metadata = |text: &str| reference(&format!("{{ key: k, metadata: {{ a: {text} }} }}"));
    let lists = |levels: usize| metadata(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
    assert!(read(&lists(60)).is_ok());
    assert!(mistakes(&lists(61)).contains("expected at most 64 levels"));
    for hostile in ["[", "{", "- ", "? ", "[{", "&a [", "---\n"] {
        mistakes(&hostile.repeat(1 << 20));
        mistakes(&metadata(&hostile.repeat(1 << 20)));
    }
    let many = metadata(&format!("[{}]", "1, ".repeat(1 << 18)));
    assert!(mistakes(&many).contains("expected at most 262144 values"));
    assert!(mistakes(&"#".repeat(5 << 20)).contains("too large"));
    let long = format!("domain: {}", "d".repeat(2_000));
    assert!(mistakes(&long).contains("expected at most 1024 bytes"));
    let limits = |number: usize| {
        let limits = (0..number).map(|n| format!("{{ name: l{n}, quota: 5/s }}, "));
        let limits = limits.collect::<String>();
        format!("format: tollgate/v1\ndomain: d\ndescriptors: [{{ key: k, limits: [{limits}] }}]")
    };
    assert!(read(&limits(16)).is_ok());
    assert!(mistakes(&limits(17)).contains("too many limits of a rule; expected at most 16"));
    let bomb = format!(
        "domain: d\ndescriptors:\n- key: k\n  metadata:\n    a: &a [x, x, x, x, x, x, x, x]\n{}",
        ('b'..='k')
            .zip('a'..)
            .map(|(name, of)| format!(
                "    {name}: &{name} [{}]\n",
                vec![format!("*{of}"); 8].join(", ")
            ))
            .collect::<String>()
    );
    assert!(mistakes(&bomb).contains("too many values"));
    let chain: String = (1..100).map(|n| format!(", &a{n} [*a{}]", n - 1)).collect();
    let chain = metadata(&format!("[&a0 []{chain}]"));
    assert!(mistakes(&chain).contains("expected at most 64 levels"));
    assert!(mistakes(&metadata("&a [*a]")).starts_with("1.yaml:3:"));
}

#[test]
fn descriptors_of_all_files_are_bounded() {
    // In each file 40 times 101 rules.
    let file = |name: usize| {
        let children: String = (0..100).map(|n| format!("{{ key: c{n} }}, ")).collect();
        let aliases: String = (1..40)
            .map(|n| format!("  - {{ key: k{n}, descriptors: *children }}\n"))
            .collect();
        format!(
            "domain: d{name}\ndescriptors:\n  - {{ key: k0, descriptors: &children [{children}] }}\n{aliases}"
        )
    };
    let files = [file(1), file(2), file(3)];
    let files: Vec<_> = files.iter().map(|file| &**file).collect();
    assert!(read_all(&files[..2], false).is_ok());
    let error = read_all(&files, false).expect_err("12,120").to_string();
    let expected = "too many rules; expected at most 10000";
    assert!(
        error.starts_with("3.yaml:") && error.ends_with(expected),
        "{error}"
    );
}

#[test]
fn the_documents_of_the_readme_and_the_guide_are_read() {
    let readme = include_str!("../../README.md");
    let (_, readme) = readme.split_once("\n## Documents\n").expect("a section");
    let guide = include_str!("../../../docs/guide/envoy.md");
    let documents = [readme, guide].map(|page| page.split("```yaml\n").skip(1));
    let documents = documents.into_iter().flatten();
    let documents: Vec<_> = documents
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert_eq!(documents.len(), 4);
    for document in documents {
        assert_written(&read(document).expect(document));
    }
}

/// Texts that are hard for YAML.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-c_/.=#%~* -]{1,6}",
        1 => "\\PC{1,8}",
        1 => any::<String>().prop_map(|text| text.chars().take(40).collect()),
        1 => "x{0,300}",
        1 => prop::sample::select(vec!["null", "~", "yes", "1.0", "0x1", "<<", "- a", "a: b", "'", "\"", "\u{85}", "\u{feff}", "\t", " "]).prop_map(str::to_owned),
    ]
}

fn metadata() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
        prop::collection::vec(text(), 0..3).prop_map(Value::from),
    ];
    prop::collection::hash_map(text(), leaf, 0..3)
        .prop_map(|map| Value::Object(map.into_iter().collect()))
}

/// A document in JSON, which is YAML.
fn document() -> impl Strategy<Value = String> {
    let parts = (
        text(),
        text(),
        prop::option::of(text()),
        prop::option::of(text()),
        metadata(),
    );
    parts.prop_map(|(domain, key, value, name, metadata)| {
        let rule = json!({
            "key": format!("k{}", key.replace('*', "")),
            "value": value.filter(|value| !value.is_empty()),
            "rate_limit": { "unit": "day", "requests_per_unit": 5, "name": name },
            "metadata": metadata,
        });
        json!({ "domain": format!("d{domain}"), "descriptors": [rule] }).to_string()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn rules_that_are_written_are_read_as_the_same_rules(text in document()) {
        assert_written(&read(&text).expect("no mistake"));
    }

    #[test]
    fn different_paths_have_different_valid_names(
        paths in prop::collection::hash_set(
            (text(), prop::collection::vec((text(), prop::option::of(text())), 0..3), prop::option::of(text())),
            2..20,
        ),
    ) {
        let names: HashSet<_> = paths.iter().map(|(domain, descriptors, limit)| {
            let path = descriptors.iter().fold(PolicyPath::domain(domain), |path, (key, value)| path.rule(key, value.as_deref()));
            let path = limit.as_ref().map_or(path.clone(), |name| path.limit(name));
            path.policy_name()
        }).collect();
        prop_assert_eq!(names.len(), paths.len());
        for name in names {
            prop_assert!(name.len() <= 64 && name.bytes().all(|byte| matches!(byte, b'!'..=b'~') && byte != b'"' && byte != b'\\'), "{}", name);
        }
    }

    #[test]
    fn no_change_of_a_document_makes_the_reader_panic(text in document(), at: prop::sample::Index, to in text()) {
        let ends: Vec<_> = text.char_indices().map(|(at, _)| at).collect();
        let at = *at.get(&ends);
        let _ = read(&format!("{}{to}{}", &text[..at], &text[at..]));
        let _ = read(&text[..at]);
    }
}
