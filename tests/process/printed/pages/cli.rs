//! The command line, on files and on a service with its Redis.

use testkit::{Server, Timers};

use crate::printed::{page::Page, session::Session};

const TOKEN: &str = "a-token-of-the-operators";

const BEFORE: &str = "
[policies.api]
quota = '10/min'
[policies.login]
quota = '5/min'
[policies.uploads]
quota = '100/h'
";

const AFTER: &str = "
on_store_error = 'reject'
[policies.api]
quota = '20/min'
[policies.login]
quota = '5/min'
";

pub(crate) fn run(page: &mut Page) {
    let mut session = Session::start(Timers::Stopped);
    session.write("limits.toml", &page.expect("toml").text);
    let check = page.expect("console");
    session.run(page, &check);

    session.write("limits.toml", BEFORE);
    session.write("new.toml", AFTER);
    let diff = page.expect("console");
    session.run(page, &diff);

    let redis = Server::builder().clock(session.clock()).start();
    let limits = page.expect("toml").text;
    assert!(limits.contains(":6379"), "{limits}");
    let port = format!(":{}", redis.port());
    // However slow the machine is, Redis decides.
    let limits = limits.replace(":6379", &port);
    let limits = limits.replace("[store]", "[store]\ntimeout = \"20s\"");
    assert!(limits.contains("timeout"), "{limits}");
    session.write("limits.toml", &limits);
    session.start_service_of_file(TOKEN);
    session.export("TOLLGATE_ADMIN_TOKEN", TOKEN);
    session.port(6379, redis.port());
    while let Some(block) = page.next() {
        session.run(page, &block);
    }
}
