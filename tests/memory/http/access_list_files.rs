//! Files of access lists.

use crate::http::support::*;

/// A file of a list.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, text).expect("a file");
        Self(path)
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).expect("a file");
    }
}

#[test]
fn a_list_file_has_one_entry_per_line_and_comments() {
    let text = "\u{feff}# the office\n10.0.0.0/8\n\n  192.0.2.7\t# a guest\r\n2001:db8::/32\n";
    let file = File::new("addresses.txt", text);
    let list = AddressList::from_file(&file.0).expect("a list");
    let on = |ip: &str| list.contains(ip.parse().expect(ip));
    assert!(on("10.1.2.3") && on("192.0.2.7") && on("2001:db8::1") && !on("192.0.2.8"));

    file.write("192.0.2.8\n");
    assert!(!on("192.0.2.8"), "it is read on request");
    list.reload().expect("a reload");
    assert!(on("192.0.2.8") && !on("10.1.2.3"));

    file.write("10.0.0.0/8\n# fine\n10.0.0.0/40\n");
    let error = list.reload().expect_err("a mistake").to_string();
    assert!(
        error.contains("line 3 of") && !error.contains("10.0.0.0/40"),
        "its number, not its text: {error}"
    );
    assert!(on("192.0.2.8"), "it is as it was");
    fs::remove_file(&file.0).expect("no file");
    assert!(list.reload().is_err() && on("192.0.2.8"));
    AddressList::from_file("there/is/none").expect_err("a mistake");
}

#[test]
fn a_list_file_is_read_up_to_its_bound() {
    const MAX_BYTES: u64 = 64 << 20;
    let file = File::new("long.txt", "10.0.0.0/8\n");
    let long = fs::OpenOptions::new().write(true).open(&file.0);
    long.and_then(|long| long.set_len(MAX_BYTES + 1))
        .expect("a sparse file");
    let keys = KeyList::from_file("api", &file.0, |token| Key::secret(token)).map(drop);
    for list in [AddressList::from_file(&file.0).map(drop), keys] {
        let error = list.expect_err("a mistake").to_string();
        assert_contains(&error, ["it is longer than 67108864 bytes"]);
    }
}

#[test]
fn a_list_knows_a_uuid_by_the_hash_that_version_0_1_showed() {
    let uuid = "550e8400-e29b-41d4-a716-446655440000";
    let file = File::new("uuids.txt", "hash:bU_IUGHE1fr1HhExzVjA\n");
    let list = KeyList::from_file("api", &file.0, |user| Key::new(user)).expect("a list");
    assert!(list.contains(&Key::new(uuid)));
    assert!(!list.contains(&Key::new("550e8400-e29b-41d4-a716-446655440001")));
    assert!(!list.contains(&Key::new(uuid.to_ascii_uppercase())));
    assert!(!list.contains(&Key::secret(uuid)));
}

#[test]
fn a_key_list_file_holds_values_or_their_hashes() {
    let hash = Key::secret("third").as_str()[1..].to_owned();
    let text = format!("# stolen\nfirst\nsecond # last week\nhash:{hash}\n");
    let file = File::new("keys.txt", &text);
    let list = KeyList::from_file("api", &file.0, |token| Key::secret(token)).expect("a list");
    for token in ["first", "second", "third"] {
        assert!(list.contains(&Key::secret(token)), "{token}");
        assert!(!list.contains(&Key::new(token)), "{token}");
    }
    assert!(!list.contains(&Key::secret("# stolen")));
    for wrong in ["hash:x", "hash:short", "hash:7lEM2SSxGPnYHjFZP0w+"] {
        file.write(wrong);
        let error = list.reload().expect_err(wrong).to_string();
        assert!(
            error.contains("line 1 of") && !error.contains(wrong),
            "{error}"
        );
    }
    file.write("fourth");
    list.reload().expect("a reload");
    assert!(list.contains(&Key::secret("fourth")) && !list.contains(&Key::secret("first")));
}
