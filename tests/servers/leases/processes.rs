//! Processes that are killed, or stopped for longer than the TTL, while they hold units.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use testkit::{Server, TempDir};
use tollgate::{Lease, Limiter, Policy};

use crate::leases::{
    checker::{Admission, Bound, excess, now, units_in},
    support::{KEY, StrategyKind, builder, limiter, ms, until, used},
};

const URL: &str = "TOLLGATE_LEASES_URL";
const FILE: &str = "TOLLGATE_LEASES_FILE";
const STRATEGY: &str = "TOLLGATE_LEASES_STRATEGY";

const SECOND: u64 = 1_000_000;
const RATE: u64 = 4_000;
const BURST: u64 = 2_000;

const LEASE_TTL: Duration = ms(100);

fn policy(strategy: &str) -> Policy {
    let (strategy, quota) = match strategy {
        "gcra" => (StrategyKind::Gcra, format!("{RATE}/s burst {BURST}")),
        "calendar" => (StrategyKind::Calendar, format!("{RATE}/s")),
        "plenty" => (StrategyKind::Fixed, "100000000/month".to_owned()),
        other => panic!("{other}"),
    };
    let policy = strategy.policy("p", &quota);
    policy.lease(Lease::max_units(500).ttl(LEASE_TTL))
}

fn process_limiter(url: &str, strategy: &str) -> Limiter {
    limiter(builder(url).build().expect("a store"), [policy(strategy)])
}

/// Runs as a process of its own, below: it sends requests until it is killed, and writes each admission to its file. It does
/// nothing in a plain run of the tests.
#[test]
fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let strategy = env::var(STRATEGY).expect("a strategy");
    let file = env::var(FILE).expect("a file");
    let mut file: File = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .expect("a file");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let limiter = process_limiter(&url, &strategy);
        // Its parent kills it; should that die, this ends by itself.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            let before = now();
            let decision = limiter.check(KEY).await;
            let after = now();
            if decision.is_admitted() {
                let source = decision.source().as_str();
                // In one call, so that a killed process leaves whole lines.
                let line = format!("{before} {after} {source}\n");
                file.write_all(line.as_bytes()).expect("its file");
                // Above the limit, and not far: the others want some, too.
                if strategy == "plenty" {
                    tokio::time::sleep(ms(1)).await;
                }
            } else {
                tokio::time::sleep(ms(1)).await;
            }
        }
    });
}

/// Sends a signal to a process.
pub(crate) fn signal(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    let status = Command::new("sh").args(["-c", &kill]).status();
    assert!(status.expect("a shell").success(), "{kill}");
}

pub(crate) fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("its state");
    let state = stat.rsplit(") ").next();
    state.is_some_and(|rest| rest.starts_with('T'))
}

struct Process {
    child: Child,
    file: PathBuf,
}

impl Process {
    fn start(folder: &Path, number: usize, url: &str, strategy: &str) -> Self {
        let file = folder.join(format!("{number}"));
        let child = tollgate_tests::child::test(module_path!(), "child_process")
            .env(URL, url)
            .env(STRATEGY, strategy)
            .env(FILE, &file)
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        Self { child, file }
    }

    fn admissions(&self) -> Vec<(Admission, bool)> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let admission = |line: &str| {
            let mut words = line.split_whitespace();
            let mut number = || words.next().and_then(|word| word.parse().ok());
            let (before, after) = (number()?, number()?);
            let by_lease = words.next()? == "lease";
            let units = 1;
            Some((
                Admission {
                    before,
                    after,
                    units,
                },
                by_lease,
            ))
        };
        lines.map(|line| admission(line).expect("a line")).collect()
    }

    fn by_lease(&self) -> usize {
        self.admissions()
            .iter()
            .filter(|(_, by_lease)| *by_lease)
            .count()
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Stops it, and returns when it is stopped.
    async fn stop(&self) {
        self.signal("STOP");
        until("a process stops", async || is_stopped(self.child.id())).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Four processes, of which some are stopped for longer than the TTL, some are killed, and others take their place.
async fn disturbed(strategy: &str) -> Vec<Admission> {
    let (server, folder): (Server, TempDir) = (Server::start(), testkit::folder());
    let start = |number| Process::start(folder.path(), number, &server.url(), strategy);
    let mut ended = Vec::new();
    let mut processes: Vec<_> = (0..4).map(start).collect();
    until("all processes lease", async || {
        processes.iter().all(|process| process.by_lease() > 0)
    })
    .await;
    for round in 0..4 {
        let stopped = &processes[round % 4];
        stopped.stop().await;
        let killed = (round + 2) % 4;
        processes[killed].signal("KILL");
        let next = start(4 + round);
        ended.push(std::mem::replace(&mut processes[killed], next));
        tokio::time::sleep(LEASE_TTL * 3).await;
        processes[round % 4].signal("CONT");
        tokio::time::sleep(LEASE_TTL).await;
    }
    processes.iter().for_each(|process| process.signal("KILL"));
    for process in &mut processes {
        process.child.wait().expect("its end");
    }
    ended.append(&mut processes);
    let admissions = ended.iter().flat_map(Process::admissions);
    let admissions: Vec<_> = admissions.map(|(admission, _)| admission).collect();
    assert!(admissions.len() as u64 > BURST / 2);
    admissions
}

#[tokio::test]
async fn processes_that_are_stopped_and_killed_exceed_no_rate() {
    let admissions = disturbed("gcra").await;
    let bound = Bound {
        burst: BURST,
        rate: (RATE, SECOND),
    };
    let excess = excess(&admissions, bound);
    assert!(excess <= 0.0, "{excess} too many");
}

#[tokio::test]
async fn processes_that_are_stopped_and_killed_exceed_no_window() {
    let admissions = disturbed("calendar").await;
    let first = admissions
        .iter()
        .map(|one| one.before)
        .min()
        .expect("an admission");
    for second in first / SECOND..=now() / SECOND {
        let admitted = units_in(&admissions, (second * SECOND, (second + 1) * SECOND));
        assert!(admitted <= RATE, "{admitted} in one second");
    }
}

/// What it held is lost, and no more.
#[tokio::test]
async fn a_killed_process_takes_along_no_more_than_its_leases() {
    let (server, folder) = (Server::start(), testkit::folder());
    let other = process_limiter(&server.url(), "plenty");
    let mut process = Process::start(folder.path(), 0, &server.url(), "plenty");
    until("it leases", async || process.by_lease() > 100).await;
    process.signal("KILL");
    process.child.wait().expect("its end");
    let admitted = process.admissions().len() as u64;
    let charged = used(&other, KEY).await;
    assert!(
        charged + 1 >= admitted && charged <= admitted + 2 * 500,
        "{admitted} admitted, {charged} charged"
    );
}
