use http::request::Parts;

use super::*;
use crate::{
    ConfigError, Key, SlidingWindow,
    config::{Registry, names},
    error::InvalidValue,
    extract::{self, KeyExtractor},
};

fn registry() -> Registry {
    let user = |parts: &Parts| {
        parts
            .headers
            .get("x-user")
            .map(|user| Key::new(user.as_bytes()))
    };
    Registry::new()
        .key("user", extract::from_fn(user))
        .strategy("own", SlidingWindow::buckets(7))
}

/// The text of the key that `text` is parsed to.
fn key(text: &str) -> String {
    let key = parse_key(text, &registry()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    key.config_text().expect(text).into_owned()
}

fn strategy(text: &str) -> String {
    let strategy = parse_strategy(text, &registry());
    let strategy = strategy.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    strategy.config_text().expect(text).into_owned()
}

fn message(error: InvalidValue) -> String {
    ConfigError::at("", error).to_string()
}

#[test]
fn a_key_is_parsed_to_the_extractor_that_has_its_text() {
    for text in [
        "peer",
        "peer ipv6_prefix 56 ipv4_prefix 24",
        "client_ip",
        "client_ip hops 2 trusted_proxies 10.0.0.0/8,2001:db8::/32 forwarded ipv6_prefix 48",
        "client_ip trusted_proxies none",
        "client_ip trusted_proxies 10.0.0.0/8 header cf-connecting-ip",
        "header:x-tenant",
        "header:x-tenant secret",
        "header:x-api-key readable",
        "header:\"a|b\"",
        "query:\"say \\\"hi\\\\\"",
        "query:map",
        "cookie:session",
        "cookie:lang readable",
        "bearer",
        "host",
        "path",
        "method",
        "grpc_service",
        "grpc_method",
        "global",
        "user",
        "bearer | user | peer",
        "user | (bearer | peer)",
        "(user | bearer) | peer",
        "header:\"a|b\" | [host | path, peer]",
        "same(header:x-api-key, bearer)",
        "[header:x-tenant, path]",
        "[user | peer, same(host, path), [method, host], global]",
        "[client_ip trusted_proxies 10.0.0.0/8,192.168.0.0/16, path]",
    ] {
        assert_eq!(key(text), text);
    }
    #[cfg(feature = "axum")]
    assert_eq!(key("matched_path"), "matched_path");
    for (text, same) in [
        ("  header:X-Tenant   readable ", "header:x-tenant"),
        ("header:x-api-key secret|peer", "header:x-api-key | peer"),
        ("((host))", "host"),
        ("[host,path]", "[host, path]"),
        (
            "client_ip trusted_proxies 10.0.0.0/8, 192.0.2.1",
            "client_ip trusted_proxies 10.0.0.0/8,192.0.2.1/32",
        ),
        ("peer ipv6_prefix 64", "peer"),
    ] {
        assert_eq!(key(text), same);
    }
}

#[test]
fn a_mistake_in_a_key_says_what_was_found_and_what_is_valid() {
    let all = format!("{}, user", names::built_in_keys().join(", "));
    for (text, expected) in [
        ("pear", format!("an unknown key \"pear\"; expected \"peer\", or another of {all}")),
        ("", "the end in the key \"\"; expected a key such as client_ip".to_owned()),
        ("header", "header without a name, in the key \"header\"; expected a name after a colon, such as header:x-api-key".to_owned()),
        ("header:\"a b\"", "a header \"a b\"; expected a field name of RFC 9110".to_owned()),
        ("host path", "\"path\" in the key \"host path\"; expected nothing more, or | and another key".to_owned()),
        ("[host, path", "the end in the key \"[host, path\"; expected \",\" or \"]\"".to_owned()),
        ("[host]", "a list of 1 keys; expected two to four".to_owned()),
        ("same(host)", "\")\" in the key \"same(host)\"; expected two keys in parentheses: same(KEY, KEY)".to_owned()),
        ("client_ip hops 0", "0 hops; expected at least 1 and at most 64".to_owned()),
        ("client_ip trusted_proxies ten", "\"ten\" in the key \"client_ip trusted_proxies ten\"; expected networks such as trusted_proxies 10.0.0.0/8,192.168.0.0/16, or none".to_owned()),
    ] {
        let error = parse_key(text, &registry()).expect_err(text);
        assert_eq!(message(error), expected);
    }
    let deep = "(".repeat(100_000);
    assert!(parse_key(&deep, &registry()).is_err());
}

#[test]
fn client_ip_and_bearer_are_those_of_the_document() {
    let by_client = extract::client_ip().trusted_proxies(["10.0.0.0/8"]);
    let keyed = extract::bearer().hash_key([7; 32]);
    let registry = Registry::new().with_client_ip(by_client).with_bearer(keyed);
    let text = |text: &str| {
        let key = parse_key(text, &registry).map_err(message)?;
        Ok::<_, String>(key.config_text().expect(text).into_owned())
    };
    assert_eq!(
        text("client_ip").as_deref(),
        Ok("client_ip trusted_proxies 10.0.0.0/8")
    );
    // One with settings has these alone.
    assert_eq!(text("client_ip hops 1").as_deref(), Ok("client_ip hops 1"));
    let bearer = text("bearer").expect("a key");
    assert!(bearer.starts_with("bearer hash_key "));
}

#[test]
fn a_strategy_is_parsed_to_the_one_that_has_its_text() {
    for text in [
        "gcra",
        "token_bucket",
        "fixed_window",
        "list_window",
        "sliding_log",
        "sliding_window",
        "sliding_window buckets 10",
        "calendar_window utc",
        "calendar_window east_of_utc 5400s",
        "calendar_window west_of_utc 5h week_starts_on sunday",
        "calendar_window zone Europe/Berlin week_starts_on saturday",
        "calendar_window from_epoch",
        "concurrency",
        "concurrency ttl 10s",
        "ban 10min",
        "ban 10min max 1day",
        "own",
    ] {
        let expected = text.replace("5400s", "90min");
        assert_eq!(strategy(text), expected);
    }
    assert_eq!(strategy("calendar_window"), "calendar_window utc");
}

#[test]
fn a_mistake_in_a_strategy_says_what_was_found_and_what_is_valid() {
    let all = format!("{}, own", names::built_in_strategies().join(", "));
    for (text, expected) in [
        ("fixed-window", format!("an unknown strategy \"fixed-window\"; expected \"fixed_window\", or another of {all}")),
        ("", "the end in the strategy \"\"; expected a strategy such as gcra".to_owned()),
        ("sliding_window buckets 0", "\"0\" in the strategy \"sliding_window buckets 0\"; expected a number of buckets from 1 to 100".to_owned()),
        ("ban", "the end in the strategy \"ban\"; expected a duration, such as ban 10min max 1day".to_owned()),
        ("calendar_window Europe/Berlin", "\"Europe/Berlin\" in the strategy \"calendar_window Europe/Berlin\"; expected from_epoch, or utc, east_of_utc 2h, west_of_utc 5h or zone Europe/Berlin, and week_starts_on sunday".to_owned()),
    ] {
        let error = parse_strategy(text, &registry()).expect_err(text);
        assert_eq!(message(error), expected);
    }
}
