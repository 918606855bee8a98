//! What keys promise.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// A UUID in canonical form and lower case.
fn uuid_text(bits: u128) -> String {
    let digits = format!("{bits:032x}");
    let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
    format!("{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
}

/// UUIDs, and what is almost one.
fn uuids_and_the_like() -> impl Strategy<Value = String> {
    let bits = prop_oneof![any::<u128>(), Just(0), Just(u128::MAX), 0..1_000u128];
    (bits, 0..8u8, 0..36usize).prop_map(|(bits, form, place)| {
        let lower = uuid_text(bits);
        let upper = lower.to_ascii_uppercase();
        match form {
            0 => lower,
            1 => upper,
            2 => [&lower[..place], &upper[place..]].concat(),
            3 => lower.replace('-', ""),
            4 => format!("{{{lower}}}"),
            5 => [&lower[..place], "_", &lower[place + 1..]].concat(),
            6 => Key::new(lower).as_str().to_owned(),
            _ => Key::new(upper).as_str().to_owned(),
        }
    })
}

/// A key of any form, and what it stands for. A short address is the key of its text, too.
fn every_form() -> impl Strategy<Value = (String, Key)> {
    let text = prop_oneof![
        uuids_and_the_like(),
        "[ab#~+*?:. {-]{0,4}",
        "[#~][A-Za-z0-9_-]{20,22}",
        "(hash|key):[a-f0-9~#-]{1,36}",
    ]
    .boxed();
    let text = prop::sample::select(vec!["text", "secret"]).prop_flat_map(move |form| {
        text.clone().prop_map(move |text| {
            let key = match form {
                "text" => Key::new(&text),
                _ => Key::secret(&text),
            };
            (format!("{form} {text}"), key)
        })
    });
    let network = (any::<u128>(), any::<bool>(), 0..=128u8).prop_map(|(bits, is_v4, len)| {
        let address = match is_v4 {
            true => IpAddr::from((bits as u32).to_be_bytes()),
            false => IpAddr::from(bits.to_be_bytes()),
        };
        let key = Key::network(address, len, len);
        let masked = bits >> (128 - len).min(127);
        let name = match key.has_hash() {
            true => format!("network {masked:x} {len}"),
            false => format!("text {key}"),
        };
        (name, key)
    });
    let single = prop_oneof![Just(Key::global()), Just(Key::missing())];
    let single = single.prop_map(|key| (format!("single {key}"), key));
    let part = prop_oneof![4 => text, 2 => network, 1 => single].boxed();
    let parts = prop::collection::vec(part.clone(), 0..4).prop_map(|parts| {
        let (names, keys): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        (format!("tuple {names:?}"), Key::tuple(keys))
    });
    prop_oneof![part, parts]
}

#[test]
fn short_safe_text_stays_readable_and_other_text_and_secrets_are_hashed() {
    for text in ["alice", "bob@example.org", "/users/1", "a", "10.0.0.1"] {
        assert_eq!(Key::new(text).as_str(), text);
        assert!(!Key::secret(text).as_str().contains(text));
    }
    let long = "a-text-of-more-than-23-characters";
    for text in ["", "{slot}", "a\nb", "a b", "#abc", "a+b", "*", "é", long] {
        let key = Key::new(text);
        assert!(key.as_str().starts_with('#'), "{text} is {key}");
        assert_eq!(key.as_str().len(), 21);
    }
    let [seven, eight] = [7, 8].map(|byte| Key::secret_with(&[byte; 32], "abc"));
    assert!(seven != eight && seven != Key::secret("abc"));
}

#[test]
fn an_address_is_counted_by_the_network_of_one_subscriber() {
    for (address, expected) in [
        ("192.0.2.1", "192.0.2.1"),
        ("255.255.255.255", "255.255.255.255"),
        ("100.10.9.0", "100.10.9.0"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2::5", "2001:db8:1:2::"),
        ("ffff:ffff:ffff:ffff:1::", "ffff:ffff:ffff:ffff::"),
    ] {
        let address = address.parse().expect(address);
        assert_eq!(Key::ip(address).as_str(), expected);
    }
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
fn a_uuid_is_stored_in_23_characters_and_displayed_as_it_is() {
    #[rustfmt::skip]
    let rows = [
        ("550e8400-e29b-41d4-a716-446655440000", "~VQ6EAOKbQdSnFkRmVUQAAA"),
        ("550E8400-E29B-41D4-A716-446655440000", "~VQ6EAOKbQdSnFkRmVUQAAB"),
        // Without letters it is in lower case.
        ("00000000-0000-0000-0000-000000000000", "~AAAAAAAAAAAAAAAAAAAAAA"),
        ("ffffffff-ffff-ffff-ffff-ffffffffffff", "~_____________________w"),
    ];
    for (text, stored) in rows {
        let key = Key::new(text);
        assert_eq!((key.as_str(), &*key.to_string()), (stored, text));
        assert_eq!(Key::parse_stored(stored.as_bytes()), Some(key));
        assert!(Key::secret(text).as_str().starts_with('#'));
    }
    for text in [
        "550e8400-E29B-41d4-a716-446655440000",
        "550e8400-e29b-41d4-a716-44665544000",
        "550e8400-e29b-41d4-a716-44665544000g",
        "550e8400-e29b-41d4-a7164-46655440000",
        "550e8400_e29b-41d4-a716-446655440000",
        "550e8400e29b41d4a716446655440000",
        "{550e8400-e29b-41d4-a716-446655440000}",
        "urn:uuid:550e8400-e29b-41d4-a716-446655440000",
        "~VQ6EAOKbQdSnFkRmVUQAAA",
    ] {
        assert!(Key::new(text).as_str().starts_with('#'), "{text}");
    }
}

#[test]
fn a_stored_text_that_no_uuid_has_is_no_key() {
    for text in [
        "~",
        "~VQ6EAOKbQdSnFkRmVUQAA",
        "~VQ6EAOKbQdSnFkRmVUQAAAA",
        // Other spare bits.
        "~VQ6EAOKbQdSnFkRmVUQAAC",
        "~VQ6EAOKbQdSnFkRmVUQAAP",
        // In upper case, without a letter.
        "~AAAAAAAAAAAAAAAAAAAAAB",
        "~VQ6EAOKbQdSnFkRmVUQA+A",
        "a~VQ6EAOKbQdSnFkRmVUQAA",
        "~VQ6EAOKbQdSnFkRmVU+a",
    ] {
        assert_eq!(Key::parse_stored(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    #[test]
    fn only_one_stored_text_is_that_of_a_uuid(digits in "[A-Za-z0-9_-]{22}") {
        let stored = format!("~{digits}");
        match Key::parse_stored(stored.as_bytes()) {
            Some(key) => {
                prop_assert_eq!(key.as_str(), stored);
                prop_assert_eq!(Key::new(key.to_string()), key);
            }
            // One of the last character's spare bits is set.
            None => prop_assert!(!"AQgw".contains(&stored[22..])),
        }
    }

    #[test]
    fn keys_of_all_forms_differ_and_are_read_back_from_their_stored_texts(
        forms in prop::collection::vec(every_form(), 2..40),
    ) {
        let mut seen = HashMap::new();
        for (name, key) in forms {
            prop_assert!(key.as_str().len() <= MAX_READABLE_LEN);
            prop_assert_eq!(Key::parse_stored(key.as_bytes()), Some(key));
            let other = seen.insert(key, name.clone());
            prop_assert_eq!(other.unwrap_or_else(|| name.clone()), name);
        }
    }
}
