//! `diff`.

use crate::program::{tollgate, write};

const OLD: &str = "[store]\nurl = '${NO_SUCH_VARIABLE}'\n[policies.api]\nquota = '10/min'\n\
                   [policies.login]\nquota = '5/min'\n[policies.uploads]\nquota = '1/min'\n";
const NEW: &str = "on_store_error = 'reject'\n[store]\nurl = '${NO_SUCH_VARIABLE}'\n[policies.api]\nquota = '20/min'\n\
                   [policies.login]\nquota = '5/min'\n";

#[test]
fn changes_are_printed_with_what_becomes_of_the_counts() {
    let folder = testkit::folder();
    let old = write(folder.path(), "old.toml", OLD);
    let new = write(folder.path(), "new.toml", NEW);
    let run = tollgate(&["diff", &old, &new]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    assert_eq!(
        run.stdout,
        "on_store_error: altered\n\
         api: altered: quota 10/min -> 20/min (the used share stays)\n\
         login: kept\n\
         uploads: removed (its counts expire by themselves)\n"
    );
    assert_eq!(tollgate(&["diff", "--exit-code", &old, &new]).code, Some(1));
    assert_eq!(tollgate(&["diff", "--exit-code", &old, &old]).code, Some(0));

    let run = tollgate(&["diff", "--json", &old, &new]);
    let json: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(json["differs"], true);
    assert_eq!(json["policies"][0]["change"], "altered");
    assert_eq!(json["policies"][0]["quota_after"], "20/min");
}

#[test]
fn another_store_and_another_hash_key_are_named_without_their_secrets() {
    let folder = testkit::folder();
    let policy = "[policies.api]\nquota = '10/min'\nkey = 'bearer'\n";
    let document = |password: &str, hash_key: &str| {
        let url = format!("redis://:${{{password}}}@localhost");
        format!("[store]\nurl = '{url}'\n[bearer]\nhash_key = '${{{hash_key}}}'\n{policy}")
    };
    let old = document("HUNTER_2", "ABAB");
    let old = write(folder.path(), "old.toml", &old);
    let new = document("HUNTER_3", "CDCD");
    let new = write(folder.path(), "new.toml", &new);
    for json in [&["diff", &old, &new][..], &["diff", &old, &new, "--json"]] {
        let run = tollgate(json);
        assert_eq!(run.code, Some(0));
        for part in ["store", "start afresh", "bearer", "counted afresh"] {
            assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
        }
        for secret in ["HUNTER", "ABAB", "CDCD"] {
            assert!(!run.stdout.contains(secret), "{}", run.stdout);
        }
    }
}

#[test]
fn a_document_with_mistakes_is_not_compared() {
    let folder = testkit::folder();
    let old = write(folder.path(), "old.toml", OLD);
    let bad = write(folder.path(), "bad.toml", "[policies.api]\nquota = 'x'\n");
    let run = tollgate(&["diff", &old, &bad]);
    assert_eq!((run.code, &*run.stdout), (Some(2), ""));
    run.assert_stderr("bad.toml:2:9: policies.api.quota");
}

#[test]
fn code_of_the_application_has_to_be_assumed() {
    let folder = testkit::folder();
    let text = "[policies.api]\nquota = '10/min'\nkey = 'user'\n";
    let old = write(folder.path(), "old.toml", text);
    let run = tollgate(&["diff", &old, &old]);
    assert_eq!(run.code, Some(2));
    run.assert_stderr("hint: --assume-registered");
    let run = tollgate(&["diff", "--assume-registered", &old, &old]);
    assert_eq!((run.code, &*run.stdout), (Some(0), "api: kept\n"));
    run.assert_stderr("the key \"user\"");
}
