//! `check`, `schema` and `completions`, which call nothing.

use std::fs;

use crate::program::tollgate;

#[test]
fn all_mistakes_of_a_document_are_printed_with_their_positions() {
    let folder = testkit::folder();
    let file = folder.path().join("limits.toml");
    fs::write(
        &file,
        "[policies.api]\nquota = '100/mins x'\ncost = -1\nkey = 'heder:x-tenant'\n",
    )
    .expect("a file");
    let path = file.to_str().expect("text");

    let run = tollgate(&["check", path]);
    assert_eq!((run.code, &*run.stderr), (Some(1), ""));
    let places: Vec<_> = run
        .stdout
        .lines()
        .map(|line| line.split(": found").next().unwrap_or_default())
        .collect();
    assert_eq!(
        places,
        [
            format!("{path}:2:9: policies.api.quota"),
            format!("{path}:3:8: policies.api.cost"),
            format!("{path}:4:7: policies.api.key"),
        ]
    );

    let run = tollgate(&["check", "--json", path]);
    assert_eq!(run.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(json["mistakes"][2]["line"], 4);
    assert_eq!(json["mistakes"][2]["path"], "policies.api.key");
}

#[test]
fn a_document_without_a_mistake_is_a_success() {
    let folder = testkit::folder();
    let file = folder.path().join("limits.yaml");
    fs::write(&file, "policies:\n  api: { quota: 100/min }\n").expect("a file");
    let path = file.to_str().expect("text");
    let run = tollgate(&["check", path]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
}

#[test]
fn the_schema_is_the_one_of_the_library() {
    let run = tollgate(&["schema"]);
    assert_eq!(run.code, Some(0));
    let checked_in = include_str!("../../../tollgate.schema.json");
    assert_eq!(run.stdout.trim_end(), checked_in.trim_end());
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let run = tollgate(&["completions", shell]);
        assert_eq!(run.code, Some(0));
        assert!(run.stdout.contains("schema"), "{shell}");
    }
}

#[test]
fn wrong_arguments_have_their_own_exit_code() {
    assert_eq!(tollgate(&["chek"]).code, Some(2));
    assert_eq!(tollgate(&[]).code, Some(2));
}
