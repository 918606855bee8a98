//! The README: three examples, and the files of a project that has them.

use crate::printed::{page::Page, pages::manifest, session::Session};
use tollgate_tests::prelude::*;

pub(crate) fn run(page: &mut Page) {
    manifest(page);

    Session::start(Timers::Stopped).run_next(page, 3);

    // Limits in a file.
    let mut session = Session::start(Timers::Stopped);
    let block = page.expect("toml");
    page.compare(
        &block,
        include_str!("../../../../examples/configured/limits.toml"),
    );
    session.run_next(page, 1);
    session.export("AFTER_SLEEP", "configuration file");
    session.run_next(page, 1);
    let log = page.expect("text");
    session.log(page, &log);

    // See and steer.
    let mut session = Session::start(Timers::Stopped);
    session.run_next(page, 2);
    let block = page.expect("yaml");
    session.write("prometheus.yml", &block.text);
    session.command("cp -r examples/../ops .", &[]);
    let checked = session.command("promtool check config prometheus.yml && echo valid", &[]);
    assert!(checked.ends_with("valid\n"), "{checked}");
    session.run_next(page, 1);
}
