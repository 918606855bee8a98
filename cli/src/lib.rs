//! The command line of tollgate.
//!
//! The program's help, `tollgate --help`, lists its commands.

// The macros panic if the reader of the output has closed it.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod check;
mod client;
mod completions;
mod confirm;
mod diff;
mod document;
mod exit;
mod key;
mod operate;
mod output;
mod replay;
mod schema;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::{
    arguments::{Arguments, Command},
    exit::Outcome,
    output::Output,
};

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let output = Output::new(arguments.json);
    match run(&arguments, &output) {
        Ok(answer) => answer.into(),
        Err(failure) => {
            failure.report();
            failure.into()
        }
    }
}

fn run(arguments: &Arguments, output: &Output) -> Outcome {
    match &arguments.command {
        Command::Check(options) => check::run(options, output),
        Command::Diff(options) => diff::run(options, output),
        Command::Replay(options) => replay::run(options, output),
        Command::Operate(command) => operate::run(command, output),
        Command::Schema => schema::run(),
        Command::Completions(options) => completions::run(options, Arguments::command()),
    }
}
