//! Measures, and prints the table: what `cargo xtask bench` runs.

use std::process::ExitCode;

use tollgate_bench::{cases::CASES, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run("tollgate", &CASES).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
