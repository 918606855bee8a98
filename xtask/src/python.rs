//! The Python packages that tests meet other implementations with, in an environment of their own under the target
//! directory.

use std::fs;
use std::path::Path;

use crate::run::{Outcome, capture, command, succeed, target_directory};
use crate::tools::install_packages;

const ENVIRONMENT: &str = "peers-venv";
const PACKAGES: &str = "tests/peers/requirements.txt";

/// What an environment is made with; Debian has it in a package of its own.
const MAKER: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))";

/// What the tests import.
const IMPORTS: &str =
    "import anthropic, envoy, grpc_status.rpc_status, grpc_tools, http_sf, openai";

pub(crate) fn ready(root: &Path) -> Outcome {
    let wanted =
        fs::read_to_string(root.join(PACKAGES)).map_err(|error| format!("{PACKAGES}: {error}"))?;
    let environment = target_directory(root)?.join(ENVIRONMENT);
    let python = environment.join("bin/python");
    let python = python.to_string_lossy();
    // Written last, so that one that was left half-way is made again.
    let made = environment.join("made-of.txt");
    let is_made = fs::read_to_string(&made).is_ok_and(|packages| packages == wanted)
        && runs(&python, IMPORTS);
    if !is_made {
        println!("    installing what {PACKAGES} lists");
        make(root, &environment.to_string_lossy(), &python)?;
        fs::write(&made, wanted).map_err(|error| format!("{}: {error}", made.display()))?;
    }
    println!("    {python}: tests talk to implementations in Python");
    Ok(())
}

fn make(root: &Path, environment: &str, python: &str) -> Outcome {
    if !runs("python3", MAKER) {
        install_packages(&["python3-venv"])?;
    }
    if !runs("python3", MAKER) {
        return Err("python3 on PATH is older than 3.10, or has no venv and ensurepip".into());
    }
    succeed(&mut command(
        "python3",
        &["-m", "venv", "--clear", environment],
    ))?;
    let install = "-m pip install --quiet --disable-pip-version-check --no-input";
    let mut install = command(python, &install.split(' ').collect::<Vec<_>>());
    // Nothing is compiled here.
    install.args(["--only-binary", ":all:", "--requirement", PACKAGES]);
    succeed(install.current_dir(root))?;
    succeed(&mut command(python, &["-c", IMPORTS]))
}

fn runs(python: &str, program: &str) -> bool {
    let outcome = capture(&mut command(python, &["-c", program]));
    outcome.is_ok_and(|(_, code)| code == Some(0))
}
