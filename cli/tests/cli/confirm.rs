//! The question before a change, on a terminal.

use std::{
    fs,
    process::{Command, Stdio},
};

use crate::{
    program::{Run, run, write},
    served::{API_KEY, World},
};

/// Runs the program on a terminal of its own, on which this is typed. What it prints, to both outputs, is `stdout`.
fn on_terminal(world: &World, arguments: &str, typed: &str) -> Run {
    let folder = testkit::folder();
    let input = write(folder.path(), "typed", typed);
    let (program, file) = (env!("CARGO_BIN_EXE_tollgate"), &world.file);
    let (name, rest) = arguments.split_once(' ').expect("a command and a key");
    let line = format!("{program} {name} --config {file} {rest}");
    let mut command = Command::new("script");
    command.env("SHELL", "/bin/sh");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command.stdin(Stdio::from(fs::File::open(input).expect("a file")));
    run(command)
}

/// Whether a reset of the key would change anything.
fn is_used(world: &World) -> bool {
    let run = world.direct(&["peek", "api", API_KEY, "--json"]);
    !run.stdout.contains("\"remaining\": 3")
}

fn used_up() -> World {
    let world = World::start();
    let service = world.service();
    while service.admits() {}
    assert!(is_used(&world));
    world
}

#[test]
fn a_change_is_made_if_the_question_is_answered_with_yes() {
    for (typed, arguments, question) in [
        (
            "y\n",
            "reset sk_live_5f1c",
            "Reset this key under every policy that can read it? [y/N]",
        ),
        (
            "YES\n",
            "reset sk_live_5f1c --policy api",
            "under \"api\"? [y/N]",
        ),
    ] {
        let world = used_up();
        let run = on_terminal(&world, arguments, typed);
        assert_eq!(run.code, Some(0), "{}", run.stdout);
        run.assert_stdout(question);
        // The answer follows the question: a table with what was left, and what is.
        let row = run.stdout.lines().find(|line| line.starts_with("api "));
        let row: Vec<_> = row.unwrap_or_default().split_whitespace().collect();
        assert_eq!(row.get(2..), Some(&["0", "3", "3"][..]), "{}", run.stdout);
        assert!(!is_used(&world));
    }
}

#[test]
fn nothing_is_changed_by_any_other_answer() {
    let world = used_up();
    for (typed, arguments) in [
        ("", "reset sk_live_5f1c"),
        ("yy\n", "reset sk_live_5f1c"),
        ("n\n", "credit api sk_live_5f1c --units 2"),
        ("\n", "block sk_live_5f1c --for 1h"),
        ("no\n", "unblock sk_live_5f1c --policy blocked"),
    ] {
        let run = on_terminal(&world, arguments, typed);
        assert_eq!(run.code, Some(1), "{arguments}: {}", run.stdout);
        run.assert_stdout("? [y/N]");
        run.assert_stdout("nothing was changed");
    }
    assert!(is_used(&world));
    let blocks = world.direct(&["blocks"]);
    assert_eq!(blocks.stdout, "no key is blocked\n");
}

#[test]
fn a_question_that_can_not_be_read_or_answered_is_not_asked() {
    let world = used_up();
    // The key is what is typed, or the question goes to a file.
    for arguments in ["reset -", "reset sk_live_5f1c 2>/dev/null"] {
        let run = on_terminal(&world, arguments, "y\n");
        assert_eq!(run.code, Some(2), "{arguments}: {}", run.stdout);
        assert!(!run.stdout.contains("[y/N]"), "{}", run.stdout);
    }
    assert!(is_used(&world));
}
