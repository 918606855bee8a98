//! From one layer to a panel and an unblocked customer.

use std::{
    thread,
    time::{Duration, Instant},
};

use testkit::{Program, Timers};

use crate::printed::{page::Page, session::Session, shell::TEST_TIMEOUT};

const LIMITS: &str = "
[policies.api]
quota = '10/min'
[policies.blocked]
block_list = true
";

pub(crate) fn run(page: &mut Page) {
    let mut session = Session::start(Timers::Stopped);
    for _ in 0..2 {
        let block = page.expect("console");
        session.run(page, &block);
    }
    let prometheus = prometheus(&mut session);
    let query = page.expect("console");
    session.run(page, &query);
    drop(prometheus);
    for _ in 0..3 {
        let block = page.expect("console");
        session.run(page, &block);
    }
    let log = page.expect("text");
    session.log(page, &log);

    session.write("limits.toml", LIMITS);
    session.write("new.toml", &LIMITS.replace("10/min", "20/min"));
    session.start_service_of_file("a-token-of-the-operators");
    session.export("AFTER_SLEEP", "configuration file");
    let changed = page.expect("console");
    session.run(page, &changed);
}

/// Starts a Prometheus that scrapes the service, and waits until it has done so.
fn prometheus(session: &mut Session) -> Program {
    let (service, port) = (session.real_port(3000), testkit::free_port());
    let started = Program::start(&["prometheus"], |command, folder| {
        let config = format!(
            "scrape_configs: [{{job_name: operated, scrape_interval: 100ms, static_configs: [{{targets: ['127.0.0.1:{service}']}}]}}]"
        );
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config).expect("a file");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!(
            "--storage.tsdb.path={}",
            folder.join("data").display()
        ));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    });
    session.port(9090, port);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let query =
        "promtool query instant http://localhost:9090 tollgate_policy_requests_total 2>/dev/null";
    while session.command(query, &[]).trim().is_empty() {
        assert!(Instant::now() < deadline, "{}", started.log());
        thread::sleep(Duration::from_millis(50));
    }
    started
}
