//! The other process, which is killed.

use std::{
    io::{BufRead, BufReader, Write},
    process,
};

use tokio::sync::mpsc;
use tollgate_tests::{load, prelude::*};

use super::{
    Case, Log, OTHER_PROCESS,
    counts::AdmittedUnits,
    traffic::{Kind, Process, Recorder},
};

const URL: &str = "TOLLGATE_LEDGER_URL";
const CASE: &str = "TOLLGATE_LEDGER_SCENE";

/// Begins each line that it writes; the test harness may write other lines.
const MARK: &str = "~ ";
const IDLE: &str = "idle";

/// The other process, and its output.
pub(super) struct Child {
    process: process::Child,
    received: mpsc::UnboundedReceiver<String>,
}

impl Child {
    pub(super) fn start(server: &Server, case: Case) -> Self {
        let case = format!("{:?}|{:?}|{}", case.strategy, case.kind, case.seed);
        let mut process =
            tollgate_tests::child::test(module_path!(), "child_process_that_is_killed");
        process.env(URL, server.url()).env(CASE, case);
        process.stdout(Stdio::piped()).stdin(Stdio::piped());
        let mut process = process.spawn().expect("a process");
        let (write_line, received) = mpsc::unbounded_channel();
        let output = BufReader::new(process.stdout.take().expect("its output"));
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(MARK) {
                    drop(write_line.send(line.to_owned()));
                }
            }
        });
        Self { process, received }
    }

    /// Runs a round in it; or kills it in the middle, after `killed_after` lines.
    pub(super) async fn round(&mut self, instant: u64, killed_after: Option<u64>, log: &Log) {
        let orders = self.process.stdin.as_mut().expect("its input");
        writeln!(orders, "{instant}").expect("it listens");
        let mut lines = 0;
        while let Some(line) = self.received.recv().await {
            let idle = line == IDLE;
            if !idle {
                let (request, record) = serde_json::from_str(&line).expect("a record");
                log.add(request, record);
                lines += 1;
            }
            match killed_after {
                None if idle => return,
                Some(after) if idle || lines == after => self.kill(),
                _ => {}
            }
        }
        assert!(killed_after.is_some(), "it ended early");
    }

    fn kill(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs as a process of its own, above. It does nothing in a plain run of the tests.
#[test]
fn child_process_that_is_killed() {
    let (Ok(url), Ok(case)) = (env::var(URL), env::var(CASE)) else {
        return;
    };
    let case: Vec<_> = case.split('|').collect();
    let mut strategies = StrategyKind::ALL.into_iter();
    let strategy = strategies.find(|strategy| format!("{strategy:?}") == case[0]);
    let mut kinds = Kind::ALL.into_iter();
    let kind = kinds.find(|kind| format!("{kind:?}") == case[1]);
    let seed = case[2].parse().expect("a seed");
    let case = (strategy.expect("a strategy"), kind.expect("a kind"), seed);
    // Rejections are cached by this process's clock, and only the server's is set.
    let store = RedisStore::builder().rejection_cache_staleness(Duration::ZERO);
    let store = store.url(url.clone()).timeout(TEST_TIMEOUT).built();
    let limiter = |policy| load::limiter(store.clone(), [policy]);
    let recorder: Recorder =
        Arc::new(|request, record| write_line(&json!((request, record)).to_string()));
    let runtime = Runtime::new().expect("a runtime");
    let admitted_units = runtime.block_on(AdmittedUnits::on(&url));
    let mut process = Process::new(case, limiter, (recorder, admitted_units), OTHER_PROCESS);
    // Until its parent kills it, or has gone.
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let instant = line.parse().expect("an instant");
        runtime.block_on(process.round(instant));
        write_line(IDLE);
    }
}

/// In one piece, so that no line is torn when the process is killed.
fn write_line(line: &str) {
    let line = format!("{MARK}{line}\n");
    std::io::stdout()
        .write_all(line.as_bytes())
        .expect("the receiver exists");
}
