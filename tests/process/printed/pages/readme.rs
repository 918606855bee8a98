//! The README: three examples, and the files of a project that has them.

use testkit::Timers;

use crate::printed::{manifests, page::Page, session::Session};

pub(crate) fn run(page: &mut Page) {
    manifests::check(&page.expect("toml"));

    let mut session = Session::start(Timers::Stopped);
    for _ in 0..3 {
        let block = page.expect("console");
        session.run(page, &block);
    }

    // Limits in a file.
    let mut session = Session::start(Timers::Stopped);
    let block = page.expect("toml");
    page.compare(
        &block,
        include_str!("../../../../examples/configured/limits.toml"),
    );
    let start = page.expect("console");
    session.run(page, &start);
    session.export("AFTER_SLEEP", "configuration file");
    let block = page.expect("console");
    session.run(page, &block);
    let log = page.expect("text");
    session.log(page, &log);

    // See and steer.
    let mut session = Session::start(Timers::Stopped);
    for _ in 0..2 {
        let block = page.expect("console");
        session.run(page, &block);
    }
    let block = page.expect("yaml");
    session.write("prometheus.yml", &block.text);
    session.command("cp -r examples/../ops .", &[]);
    let checked = session.command("promtool check config prometheus.yml && echo valid", &[]);
    assert!(checked.ends_with("valid\n"), "{checked}");
    let block = page.expect("console");
    session.run(page, &block);
}
