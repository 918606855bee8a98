//! Processes that are killed, or stopped for longer than the TTL, in real time, while they hold units.

use std::{
    fs::OpenOptions,
    io::Write,
    process::Child,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::leases::{
    checker::{Admission, excess, rate, units_in},
    support::*,
};

const URL: &str = "TOLLGATE_LEASES_URL";
const FILE: &str = "TOLLGATE_LEASES_FILE";
const STRATEGY: &str = "TOLLGATE_LEASES_STRATEGY";

const RATE: u64 = 1_000;
const BURST: u64 = 500;

const LEASE_TTL: Duration = ms(100);
const MAX_UNITS: u64 = 100;

/// How many requests a process sends at once: enough to have leases if all are sent within a tenth of a second.
const REQUESTS: u64 = 16;

fn process_limiter(url: &str, strategy: &str) -> Limiter {
    let (strategy, quota, ttl) = match strategy {
        "gcra" => (Gcra, format!("{RATE}/s burst {BURST}"), LEASE_TTL),
        "calendar" => (Calendar, format!("{RATE}/s"), LEASE_TTL),
        // No lease ends, and is still to be refunded, when the process is killed.
        "plenty" => (Fixed, "100000000/month".to_owned(), TTL),
        other => panic!("{other}"),
    };
    let policy = strategy.policy("p", &quota);
    let policy = policy.lease(Lease::max_units(MAX_UNITS).ttl(ttl));
    limiter(builder(url).built(), [policy])
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_micros() as u64
}

/// Runs as a process of its own, below: it sends requests until it is killed, and writes what is admitted to its file. It does
/// nothing in a plain run of the tests.
#[tokio::test]
async fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let [strategy, file] = [STRATEGY, FILE].map(|name| env::var(name).expect("a variable"));
    let file = OpenOptions::new().append(true).create(true).open(file);
    let mut file = file.expect("a file");
    let limiter = process_limiter(&url, &strategy);
    // Its parent kills it; should that die, this ends by itself.
    let start = Instant::now();
    while start.elapsed() < TEST_TIMEOUT {
        let before = now();
        let decisions = join_all((0..REQUESTS).map(|_| limiter.check(KEY).into_future())).await;
        let after = now();
        let units = decisions.iter().filter(|it| it.is_admitted()).count();
        // In one call, so that a killed process leaves whole lines.
        let line = format!("{before} {after} {units}\n");
        file.write_all(line.as_bytes()).expect("its file");
        tokio::time::sleep(ms(2)).await;
    }
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

    fn admissions(&self) -> Vec<Admission> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let lines = text.split_inclusive('\n');
        let lines = lines.filter_map(|line| line.strip_suffix('\n'));
        let admissions = lines.map(|line| {
            let mut words = line.split(' ').map(|word| word.parse().expect("a number"));
            let mut number = || words.next().expect("a number");
            Admission {
                before: number(),
                after: number(),
                units: number(),
            }
        });
        admissions.collect()
    }

    /// Waits until it has admitted so many more.
    async fn admits(&self, units: u64) {
        let admitted = || -> u64 { self.admissions().iter().map(|one| one.units).sum() };
        let before = admitted();
        until("it admits requests", async || admitted() >= before + units).await;
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Three processes, of which one is stopped for longer than the TTL, one is killed, and another takes its place.
async fn disturbed(strategy: &str) -> Vec<Admission> {
    let (server, folder) = (Server::start(), testkit::folder());
    let start = |number| Process::start(folder.path(), number, &server.url(), strategy);
    let mut processes: Vec<_> = (0..3).map(start).collect();
    for round in 0..3 {
        for process in &processes[round..] {
            process.admits(1).await;
        }
        let stopped = processes[round + 1].child.id();
        testkit::signal(stopped, "STOP");
        processes[round].end();
        tokio::time::sleep(LEASE_TTL * 3).await;
        testkit::signal(stopped, "CONT");
        processes.push(start(round + 3));
    }
    processes.iter_mut().for_each(Process::end);
    processes.iter().flat_map(Process::admissions).collect()
}

#[tokio::test]
async fn processes_that_are_stopped_and_killed_exceed_no_rate_and_no_window() {
    let excess = excess(&disturbed("gcra").await, rate(RATE, BURST));
    assert!(excess <= 0.0, "{excess} too many");
    let admissions = disturbed("calendar").await;
    for second in admissions.iter().map(|one| one.before / 1_000_000) {
        let second = (second * 1_000_000, (second + 1) * 1_000_000);
        let admitted = units_in(&admissions, second);
        assert!(admitted <= RATE, "{admitted} in one second");
    }
}

/// What it held is lost, and no more.
#[tokio::test]
async fn a_killed_process_takes_along_no_more_than_its_leases() {
    let (server, folder) = (Server::start(), testkit::folder());
    let other = process_limiter(&server.url(), "plenty");
    let mut process = Process::start(folder.path(), 0, &server.url(), "plenty");
    process.admits(500).await;
    process.end();
    let admitted: u64 = process.admissions().iter().map(|one| one.units).sum();
    let charged = used(&other, KEY).await;
    // It has four leases at most, and its last requests may not have been written down.
    let lost = 4 * MAX_UNITS + REQUESTS;
    let expected = admitted..=admitted + lost;
    assert!(expected.contains(&charged), "{charged} of {expected:?}");
}
