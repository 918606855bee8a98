//! `cargo xtask test --server`: the tests whose outcome a server decides, on another server than the distribution's Redis.

use std::fs;
use std::path::Path;

use testkit::{Reply, Server};

use crate::run::{Outcome, cargo, succeed};
use crate::tools;

/// The test programs whose outcome a server decides.
const TESTS: [&str; 4] = ["clock", "groups", "redis", "servers"];

/// The unit tests that start servers, by the module that they are in.
const UNIT_TESTS: &str = "redis::";

/// The tests of encrypted connections, in the program `servers`.
const TLS_TESTS: &str = "deployments::tls::";

pub(crate) fn test(root: &Path, program: &str) -> Outcome {
    // Tests run in other folders.
    let program = match program.contains('/') {
        true => fs::canonicalize(program).map_err(|error| format!("{program}: {error}"))?,
        false => program.into(),
    };
    let program = program.to_string_lossy();
    println!("==> {}", tools::server_version(&program)?);
    let tests = |targets: &[&str]| {
        let everything = "test --workspace --exclude tollgate-fuzz --all-features --no-fail-fast";
        let mut command = cargo(root, &everything.split(' ').collect::<Vec<_>>());
        command.args(targets).arg("--");
        command.env(tools::SERVER_VARIABLE, &*program);
        command
    };
    let mut unit = tests(&["--lib"]);
    let unit = succeed(unit.arg(UNIT_TESTS));
    let mut integration = tests(&TESTS.map(|test| ["--test", test]).concat());
    if !has_tls(&program) {
        println!("==> left out: {TLS_TESTS}, since this server was built without TLS");
        integration.args(["--skip", TLS_TESTS]);
    }
    unit.and(succeed(&mut integration))
}

fn has_tls(program: &str) -> bool {
    let server = Server::builder().program(program).start();
    let port = server.command(&["CONFIG", "GET", "tls-port"]);
    matches!(port, Reply::List(found) if !found.is_empty())
}
