//! The program `tollgate-server`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_server::main()
}
