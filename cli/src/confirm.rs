//! The question before a change.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use crate::{
    exit::{Failure, Outcome},
    key::KeyText,
};

/// Whether to ask before a change.
#[derive(Debug, Args)]
pub(crate) struct Confirm {
    /// Do not ask. Required without a terminal.
    #[arg(short, long)]
    yes: bool,
}

impl Confirm {
    /// Fails if the change has to be confirmed, and there is no terminal to do so.
    pub(crate) fn require_terminal(&self, key: &KeyText) -> Outcome<()> {
        let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        if self.yes || is_terminal && !key.is_input() {
            return Ok(());
        }
        let reason = "the change can't be confirmed without a terminal: use -y";
        Err(Failure::Invalid(reason.to_owned()))
    }

    /// Asks on the terminal, unless `-y` is given.
    pub(crate) fn ask(&self, question: &str) -> Outcome<()> {
        if self.yes {
            return Ok(());
        }
        let mut terminal = io::stderr();
        write!(terminal, "{question} [y/N] ")?;
        terminal.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::Cancelled),
        }
    }
}
