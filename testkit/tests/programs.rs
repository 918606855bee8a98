//! Programs and all that they start end with their owners.
#![allow(missing_docs)]

use std::fs;

use tollgate_testkit::{Program, until};

/// What a shell prints that starts another program, and waits for it.
const PARENT: &str = "sleep 1000 & echo $!; pwd; wait";

fn parent() -> Program {
    Program::start(&["no-such-program", "sh"], |command, folder| {
        command.current_dir(folder).args(["-c", PARENT]);
    })
}

/// Whether a process runs: one that has ended may still be listed, until its parent reads its status.
fn runs(id: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

#[test]
fn a_program_ends_with_its_owner_and_so_does_what_it_has_started() {
    let mut program = parent();
    let (child, folder) = until("it prints", || {
        let log = program.log();
        let (child, folder) = log.split_once('\n')?;
        let folder = folder.strip_suffix('\n')?;
        Some((child.to_owned(), folder.to_owned()))
    });
    assert_eq!(
        fs::canonicalize(program.folder()).expect("a folder"),
        *folder
    );
    assert_eq!(program.exited(), None);
    assert!(runs(&child));
    drop(program);
    until("its child ends", || (!runs(&child)).then_some(()));
    assert!(fs::metadata(folder).is_err());
}

#[test]
fn a_program_that_ends_by_itself_reports_its_status() {
    let mut program = Program::start(&["sh"], |command, _| {
        command.args(["-c", "echo bad luck >&2; exit 7"]);
    });
    let status = until("it ends", || program.exited());
    assert_eq!(status.code(), Some(7));
    assert_eq!(program.log(), "bad luck\n");
}

#[test]
#[should_panic(
    expected = "no-such-program or another is not installed; `cargo xtask test` installs it"
)]
fn a_program_that_is_not_there_is_named() {
    Program::start(&["no-such-program", "another"], |_, _| {});
}
