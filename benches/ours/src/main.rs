//! Measures, and prints the table: what `cargo xtask bench` runs.

use std::process::ExitCode;

use tollgate_bench::{
    cases::{CASES, FLEET_ARGUMENT, fleet_process},
    run,
};

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let done = match arguments.next().as_deref() {
        Some(FLEET_ARGUMENT) => fleet_process(arguments).await,
        _ => run("tollgate", &CASES).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
