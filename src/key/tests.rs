//! What keys promise.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn ip(text: &str) -> Key {
    Key::ip(text.parse().expect(text))
}

#[test]
fn short_safe_text_stays_readable_and_other_text_is_hashed() {
    for text in ["alice", "bob@example.org", "/users/1", "a", "10.0.0.1"] {
        assert_eq!(Key::new(text).as_str(), text);
    }
    for text in [
        "",
        "{slot}",
        "a\nb",
        "a b",
        "#abc",
        "a+b",
        "*",
        "é",
        "a-text-of-more-than-23-characters",
    ] {
        let key = Key::new(text);
        assert!(key.as_str().starts_with('#'), "{text} is {key}");
        assert_eq!(key.as_str().len(), 21);
    }
}

#[test]
fn a_secret_is_never_readable() {
    assert!(!Key::secret("abc").as_str().contains("abc"));
    assert_ne!(Key::secret("abc"), Key::secret_with(&[7; 32], "abc"));
    assert_ne!(
        Key::secret_with(&[8; 32], "abc"),
        Key::secret_with(&[7; 32], "abc")
    );
    // Text that is hashed for its characters alone has another key than the same text as a secret.
    assert_ne!(Key::secret("a b"), Key::new("a b"));
}

#[test]
fn an_address_is_counted_by_the_network_of_one_subscriber() {
    assert_eq!(ip("192.0.2.1").as_str(), "192.0.2.1");
    assert_eq!(ip("255.255.255.255").as_str(), "255.255.255.255");
    assert_eq!(ip("100.10.9.0").as_str(), "100.10.9.0");
    assert_eq!(ip("2001:db8:1:2::5").as_str(), "2001:db8:1:2::");
    assert_eq!(
        ip("ffff:ffff:ffff:ffff:1::").as_str(),
        "ffff:ffff:ffff:ffff::"
    );
    assert_ne!(ip("2001:db8:1:2::5"), ip("2001:db8:1:3::5"));
}

#[test]
fn mapped_ipv4_addresses_are_ipv4_and_do_not_share_one_bucket() {
    assert_eq!(ip("::ffff:192.0.2.1"), ip("192.0.2.1"));
    assert_ne!(ip("::ffff:192.0.2.1"), ip("::ffff:192.0.2.2"));
}

#[test]
fn networks_of_different_sizes_never_share_a_key() {
    let address = "2001:db8::1".parse().expect("an address");
    let mut keys: Vec<_> = (0..=128).map(|v6| Key::network(address, 32, v6)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 129);
    let address = "10.0.0.0".parse().expect("an address");
    assert_eq!(Key::network(address, 24, 64).as_str(), "10.0.0.0/24");
    assert_eq!(Key::network(address, 0, 64).as_str(), "0.0.0.0/0");
    assert_ne!(Key::network(address, 24, 64), Key::network(address, 25, 64));
}

#[test]
fn a_tuple_in_a_tuple_is_not_the_flat_one() {
    let [a, b, c] = ["a", "b", "c"].map(Key::new);
    let keys = [
        Key::tuple([a, b, c]),
        Key::tuple([Key::tuple([a, b]), c]),
        Key::tuple([a, Key::tuple([b, c])]),
        Key::tuple([a]),
        a,
        Key::tuple::<Key>([]),
    ];
    for (i, key) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|other| other != key), "{keys:?}");
    }
}

proptest! {
    #[test]
    fn different_text_makes_different_keys(
        texts in prop::collection::vec(prop::collection::vec("[ab#+:{ ]{0,3}", 1..4), 2..30),
    ) {
        let mut seen = HashMap::new();
        for parts in texts {
            let key = Key::tuple(parts.iter().map(Key::new));
            prop_assert!(key.as_str().len() <= MAX_READABLE_LEN);
            if let Some(other) = seen.insert(key, parts.clone()) {
                prop_assert_eq!(other, parts);
            }
        }
    }
}
