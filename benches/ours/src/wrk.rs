//! Servers that are loaded over HTTP by another process: `wrk`.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;
use testkit::Program;

use crate::load::{Load, Sample, cpu_time};

/// Prints the result as JSON.
const SCRIPT: &str = include_str!("wrk.lua");

/// How often wrk is started, until it has measured any request: a busy machine may not serve one in a short run.
const ATTEMPTS: u32 = 200;

/// Sends requests to a server, over `load.tasks` connections that are kept alive. A sample's processor time is the server's,
/// if that is this process.
///
/// # Panics
///
/// If wrk is not installed, or a request fails without a response.
pub async fn load(server: SocketAddr, load: Load) -> Sample {
    for _ in 0..ATTEMPTS {
        if let Some(sample) = attempt(server, load).await {
            return sample;
        }
    }
    panic!("{server} has not responded to a request in {ATTEMPTS} runs of wrk");
}

async fn attempt(server: SocketAddr, load: Load) -> Option<Sample> {
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut wrk = Program::start(&["wrk"], |command, folder| {
        arguments(command, folder, server, load);
    });
    let mut interrupted = false;
    while wrk.exited().is_none() {
        // It runs for whole seconds, unless it is interrupted.
        if !interrupted && load.time < MIN_TIME && start.elapsed() >= load.time {
            wrk.interrupt();
            interrupted = true;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let cpu = cpu_time() - cpu;
    let log = wrk.log();
    let result = log.lines().find(|line| line.starts_with('{'));
    let Some(result) = result else {
        // It was interrupted before it began.
        assert!(interrupted, "wrk printed no result:\n{log}");
        return None;
    };
    let result: Value = serde_json::from_str(result).expect("wrk's result is JSON");
    let number = |name: &str| result[name].as_u64().expect(name);
    assert_eq!(number("failures"), 0, "requests without a response:\n{log}");
    let (requests, micros) = (number("requests"), number("us"));
    (requests > 0).then(|| Sample {
        rate: requests as f64 / micros as f64 * 1e6,
        p50: Duration::from_micros(number("p50_us")),
        p99: Duration::from_micros(number("p99_us")),
        // Any other status than one of success counts as an error.
        admitted: requests - number("statuses").min(requests),
        decisions: requests,
        cpu: cpu / u32::try_from(requests).unwrap_or(u32::MAX),
    })
}

/// The shortest time that wrk takes on its command line.
const MIN_TIME: Duration = Duration::from_secs(1);

fn arguments(command: &mut Command, folder: &Path, server: SocketAddr, load: Load) {
    let script = folder.join("result.lua");
    fs::write(&script, SCRIPT).expect("the script can be written");
    let seconds = load.time.as_secs_f64().ceil().max(1.0);
    command
        // One thread: the server has the others.
        .args(["--threads", "1", "--timeout", "300s"])
        .args(["--header", "Connection: keep-alive"])
        .args(["--connections", &load.tasks.to_string()])
        .args(["--duration", &format!("{seconds:.0}s")])
        .arg("--script")
        .arg(script)
        .arg(format!("http://{server}/"));
}
