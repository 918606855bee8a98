//! The program `tollgate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_cli::main()
}
