//! From one layer to a panel and an unblocked customer.

use testkit::Program;

use crate::printed::{page::Page, session::Session};
use tollgate_tests::prelude::*;

const LIMITS: &str = "
[policies.api]
quota = '10/min'
[policies.blocked]
block_list = true
";

pub(crate) fn run(page: &mut Page) {
    let mut session = Session::start(Timers::Stopped);
    session.run_next(page, 2);
    let prometheus = prometheus(&mut session);
    let (query, start) = (page.expect("console"), Instant::now());
    let mut printed = session.print(&query);
    // It scrapes once a second, on a machine that may be busy.
    while printed != query.text && start.elapsed() < TEST_TIMEOUT {
        printed = session.print(&query);
    }
    page.compare(&query, &printed);
    drop(prometheus);
    session.run_next(page, 3);
    let log = page.expect("text");
    session.log(page, &log);

    session.write("limits.toml", LIMITS);
    session.write("new.toml", &LIMITS.replace("10/min", "20/min"));
    session.start_service_of_file("a-token-of-the-operators");
    session.export("AFTER_SLEEP", "configuration file");
    session.run_next(page, 1);
}

/// Starts a Prometheus that scrapes the service.
fn prometheus(session: &mut Session) -> Program {
    let service = session.real_port(3000);
    let program = Program::start(&["prometheus"], |command, folder| {
        let config = format!(
            "scrape_configs: [{{job_name: operated, scrape_interval: 1s, static_configs: [{{targets: ['127.0.0.1:{service}']}}]}}]"
        );
        let (file, data) = (folder.join("prometheus.yml"), folder.join("data"));
        std::fs::write(&file, config).expect("a file");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg("--web.listen-address=127.0.0.1:0");
    });
    // It logs the port that it was given.
    let start = Instant::now();
    let port = loop {
        let log = program.log();
        let address = log.split_once("\"Listening on\" address=127.0.0.1:");
        if let Some((port, _)) = address.and_then(|(_, port)| port.split_once('\n')) {
            break port.parse().expect("a port");
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{log}");
        thread::sleep(ms(5));
    };
    session.port(9090, port);
    program
}
