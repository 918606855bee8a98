//! The same cases through other rate limiters: what `cargo xtask bench --peers` runs.

use std::process::ExitCode;

use tollgate_bench::{cases::Case, run};

mod exact;
mod in_process;
mod on_redis;
mod over;
mod peers;

const CASES: [Case; 6] = [
    Case {
        name: "cold",
        about: "512 tasks, many keys, on Redis",
        run: |plan| Box::pin(on_redis::cold(plan)),
    },
    Case {
        name: "hot",
        about: "512 tasks, one hot key, on Redis",
        run: |plan| Box::pin(on_redis::hot(plan)),
    },
    Case {
        name: "memory",
        about: "in process, called directly, many keys and one",
        run: |plan| Box::pin(in_process::direct(plan)),
    },
    Case {
        name: "layer",
        about: "in process, through the layer, many keys and one",
        run: |plan| Box::pin(in_process::layer(plan)),
    },
    Case {
        name: "exact",
        about: "how many are admitted of a limit of 1,000, and what is left behind",
        run: |_| Box::pin(exact::limit()),
    },
    Case {
        name: "over",
        about: "throughput, and how much of a limit is exceeded by limiters that share it",
        run: |plan| Box::pin(over::limit(plan)),
    },
];

#[tokio::main]
async fn main() -> ExitCode {
    match run("peers", &CASES).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
