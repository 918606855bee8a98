//! `tollgate completions`.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{
    exit::{Answer, Outcome},
    output::print,
};

/// Print the completions of a shell, such as `tollgate completions bash > /etc/bash_completion.d/tollgate`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The shell.
    shell: Shell,
}

/// Prints the completions of `command`.
pub(crate) fn run(options: &Options, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "tollgate", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Answer::Yes)
}
