//! `check`, `schema` and `completions`, which call nothing.

use crate::program::{tollgate, write};

#[test]
fn all_mistakes_of_a_document_are_printed_with_their_positions() {
    let folder = testkit::folder();
    let text = "[policies.api]\nquota = '100/mins x'\ncost = '1'\nkey = 'heder:x-tenant'\n";
    let path = write(folder.path(), "limits.toml", text);

    let run = tollgate(&["check", &path]);
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
            format!("{path}: 3 mistakes"),
        ]
    );

    let run = tollgate(&["check", "--json", &path]);
    assert_eq!(run.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(json["mistakes"][2]["line"], 4);
    assert_eq!(json["mistakes"][2]["path"], "policies.api.key");
}

#[test]
fn a_document_without_a_mistake_is_a_success() {
    let folder = testkit::folder();
    let text = "policies:\n  api: { quota: 100/min }\n";
    let path = write(folder.path(), "limits.yaml", text);
    let run = tollgate(&["check", &path]);
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
    let run = tollgate(&["completions", "bash"]);
    assert_eq!(run.code, Some(0));
    run.assert_stdout("schema");
}

#[test]
fn secrets_that_are_not_there_are_no_mistakes_unless_required() {
    let folder = testkit::folder();
    let path = write(
        folder.path(),
        "limits.toml",
        "[store]\nurl = '${NO_SUCH_VARIABLE}'\n[policies.api]\nquota = '100/min'\n",
    );
    let run = tollgate(&["check", &path]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    assert_eq!(
        run.stdout,
        format!(
            "{path}:2:7: store.url: not checked: ${{NO_SUCH_VARIABLE}}, a variable that is not set\n{path}: no mistake\n"
        )
    );
    let run = tollgate(&["check", &path, "--require-secrets"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.ends_with("1 mistake\n"), "{}", run.stdout);
}

#[test]
fn mistakes_of_the_whole_document_are_found_without_its_secrets() {
    let folder = testkit::folder();
    let policy = "quota = '0/min'\n";
    let text = format!("[store]\nurl = '${{NO_SUCH_VARIABLE}}'\n[policies.api]\n{policy}");
    let path = write(folder.path(), "limits.toml", &text);
    let run = tollgate(&["check", &path]);
    assert_eq!(run.code, Some(1));
    run.assert_stdout("policies.api.quota: found a quota of 0 requests");
}

#[test]
fn code_of_the_application_is_assumed_on_request_alone() {
    let folder = testkit::folder();
    let text = "[policies.api]\nquota = '100/min'\nkey = 'user | tenant'\ncost = 'pages'\nstrategy = 'own'\n\
                charge = { after = 'billed' }\ntier = 'plan'\ntiers = { pro = '200/min' }\nskip = { with = ['internal'] }\n\
                [policies.more]\nquota = '1/min'\nquota_with = 'found'\n";
    let text = format!("on_rejection = 'page'\n{text}");
    let path = write(folder.path(), "limits.toml", &text);
    let run = tollgate(&["check", &path]);
    assert_eq!(run.code, Some(1));
    run.assert_stderr("--assume-registered");
    let run = tollgate(&["check", "--assume-registered", &path]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""), "{}", run.stdout);
    for name in [
        "user", "tenant", "pages", "own", "billed", "plan", "internal", "found", "page",
    ] {
        let shown = format!("{name:?}\n");
        assert!(run.stdout.contains(&shown), "{name}: {}", run.stdout);
    }
}
