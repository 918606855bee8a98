//! A fleet: many limiters in several processes, at a fixed rate, and the processor time of the Redis that they share.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::Server;
use tollgate::Lease;

use super::{MAX_UNITS, NAMES, ample_window};
use crate::{
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::Callers,
    load::{Contender, Rng},
    outcome::{Outcome, Row, Target, Unit, grouped},
    plan::Plan,
    runner::median,
};

/// The first argument of the program as a process of the fleet. The server's URL follows, and the TTL of leases in milliseconds,
/// or 0 for none.
pub const ARGUMENT: &str = "fleet-process";

const PROCESSES: usize = 4;

/// Limiters of a process, each with its own connections and leases, as if it were a process by itself.
const LIMITERS: usize = 16;

/// Tasks of a limiter, which send its requests in turns.
const TASKS: u32 = 4;

/// Requests of a limiter per second, for one hot key.
const RATE: u32 = 1_000;

/// The TTLs of the leases of the fleets that take turns, in milliseconds. The last has none.
const TTLS: [u64; 4] = [50, 100, 200, 0];

pub(crate) async fn cpu_of_redis(plan: Plan) -> Vec<Outcome> {
    let measured = tokio::task::spawn_blocking(move || {
        let round = |_| TTLS.map(|ttl| measure(&plan, ttl));
        (0..plan.rounds).map(round).collect::<Vec<_>>()
    });
    let rounds = measured.await.expect("a fleet");
    let of = |pick: fn(&Sample) -> f64, place: usize| {
        median(rounds.iter().map(|round| pick(&round[place])))
    };
    let text = |place| {
        let cpu = of(|sample| sample.cpu, place) * 100.0;
        let calls = of(|sample| sample.calls, place);
        format!("{cpu:.1} % of a core, {} calls/s", grouped(calls))
    };
    let sent = f64::from(RATE) * (PROCESSES * LIMITERS) as f64;
    let title = format!(
        "{} limiters in {PROCESSES} processes, one hot key, {} requests/s",
        PROCESSES * LIMITERS,
        grouped(sent)
    );
    let without = TTLS.len() - 1;
    let cpu = |place: usize| {
        let ratios = rounds
            .iter()
            .map(|round| round[place].cpu / round[without].cpu);
        let rounds: Vec<f64> = ratios.collect();
        Row {
            measure: format!("processor time of Redis, leases of {} ms", TTLS[place]),
            ours: text(place),
            theirs: format!("{} {}", NAMES[1], text(without)),
            value: median(rounds.iter().copied()),
            unit: Unit::Ratio,
            target: Target::AtMost(0.1),
            rounds,
        }
    };
    let decided = |place| of(|sample| sample.decisions, place);
    let least = (0..TTLS.len()).map(decided).fold(f64::INFINITY, f64::min);
    let all = Row::number(
        "requests decided, of those to be sent, at least",
        least / sent,
        Unit::Fraction,
        Target::AtLeast(0.99),
    );
    let outcome = Outcome::alone("fleet", title, cpu(0));
    vec![outcome.row(cpu(1)).row(cpu(2)).row(all)]
}

/// What a fleet did per second.
struct Sample {
    /// Processor time of Redis, in seconds.
    cpu: f64,
    /// Calls of the script.
    calls: f64,
    decisions: f64,
}

/// Starts a fleet on a server of its own, and measures it once it runs.
fn measure(plan: &Plan, ttl: u64) -> Sample {
    let server = Server::start();
    let mut fleet: Vec<_> = (0..PROCESSES)
        .map(|_| Process::start(&plan.program, &server.url(), ttl))
        .collect();
    let mut decisions = || fleet.iter_mut().map(Process::decisions).collect::<Vec<_>>();
    while decisions().contains(&0) {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(plan.time / 2);
    let mut read = || {
        let cpu = ["used_cpu_user", "used_cpu_sys"].map(|field| {
            let seconds = server.info("cpu", field).and_then(|text| text.parse().ok());
            seconds.unwrap_or(0.0)
        });
        let cpu: f64 = cpu.iter().sum();
        let decisions: u64 = decisions().iter().sum();
        let calls = server.calls("evalsha");
        (Instant::now(), cpu, calls as f64, decisions as f64)
    };
    let before = read();
    std::thread::sleep(plan.time);
    let after = read();
    let seconds = (after.0 - before.0).as_secs_f64();
    Sample {
        cpu: (after.1 - before.1) / seconds,
        calls: (after.2 - before.2) / seconds,
        decisions: (after.3 - before.3) / seconds,
    }
}

/// A process of the fleet, killed on drop. It ends by itself when its standard input does.
struct Process {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, url: &str, ttl: u64) -> Self {
        let mut command = Command::new(program);
        command.args([ARGUMENT, url, &ttl.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process of the fleet");
        let requests = child.stdin.take().expect("its standard input");
        let replies = child.stdout.take().expect("its standard output");
        Self {
            child,
            requests,
            replies: BufReader::new(replies),
        }
    }

    /// How many decisions it has made.
    fn decisions(&mut self) -> u64 {
        let mut line = String::new();
        let written = writeln!(self.requests);
        let read = written.and_then(|()| self.replies.read_line(&mut line));
        assert!(read.is_ok(), "a process of the fleet has ended: {read:?}");
        line.trim().parse().expect("a number of decisions")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one process of a fleet until its standard input ends. For each line that it reads, it prints how many decisions it
/// has made.
///
/// # Errors
///
/// If an argument is missing or is no number.
pub async fn process(mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let ttl = |text: String| text.parse().ok().map(Duration::from_millis);
    let (Some(url), Some(ttl)) = (arguments.next(), arguments.next().and_then(ttl)) else {
        return Err(format!("{ARGUMENT} needs a URL and a TTL in milliseconds"));
    };
    let made = Arc::new(AtomicU64::new(0));
    for limiter in 0..LIMITERS {
        let mut policy = ample_window("fleet");
        if !ttl.is_zero() {
            policy = policy.lease(Lease::max_units(MAX_UNITS).ttl(ttl));
        }
        let callers = Callers::kept(1);
        let contender = Arc::new(TollgateLimiter::under(on_redis(&url), policy, callers).leased());
        for task in 0..TASKS {
            let contender = contender.clone();
            let place = limiter as u32 * TASKS + task;
            drop(tokio::spawn(send(contender, place, made.clone())));
        }
    }
    let replied = tokio::task::spawn_blocking(move || {
        for line in std::io::stdin().lines() {
            if line.is_err() {
                break;
            }
            println!("{}", made.load(Ordering::Relaxed));
        }
    });
    replied.await.map_err(|error| error.to_string())
}

/// Sends requests at a steady rate, for one task of so many: its first request comes later than those of the tasks before.
async fn send(contender: Arc<TollgateLimiter>, place: u32, made: Arc<AtomicU64>) {
    let mut rng = Rng::new(place as usize);
    let interval = Duration::from_secs(1) * TASKS / RATE;
    let tasks = LIMITERS as u32 * TASKS;
    let mut due = tokio::time::Instant::now() + interval * place / tasks;
    loop {
        tokio::time::sleep_until(due).await;
        contender.decide(&mut rng).await;
        made.fetch_add(1, Ordering::Relaxed);
        due += interval;
    }
}
