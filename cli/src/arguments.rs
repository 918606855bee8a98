//! The arguments of the program.

use clap::{Parser, Subcommand};

use crate::{check, completions, diff, operate::Operate, replay};

/// Checks rate limit policies, and shows and changes the counts of callers.
///
/// Exit codes: 0 for success; 1 for a negative answer, such as mistakes that `check` finds; 2 for wrong arguments, among them
/// a configuration file with mistakes; 3 if the store, the admin API or a log fails or can't be reached; 4 if the admin API
/// rejects the token, or there is none.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Check(check::Options),
    Diff(diff::Options),
    Replay(replay::Options),
    /// Print the JSON Schema of configuration files.
    Schema,
    Completions(completions::Options),
    #[command(flatten)]
    Operate(Operate),
}
