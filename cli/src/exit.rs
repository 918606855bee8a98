//! The end of a command: its exit code, and the error that it reports.

use std::{fmt::Display, io, process::ExitCode};

use crate::output::{print_error, printable::printable_lines};

/// The result of a command.
pub(crate) type Outcome<T = Answer> = Result<T, Failure>;

/// What a command that was carried out has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Exit code 0.
    Yes,
    /// Exit code 1: mistakes in a document, for example.
    No,
}

/// Why a command was not carried out.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit code 2: a configuration file with mistakes, for example.
    Invalid(String),
    /// Exit code 3: a log, the store or the admin API can't be reached, or failed.
    Unreachable(String),
    /// Exit code 4: the admin API rejects the token, or there is none.
    Unauthorized(String),
    /// Exit code 1: the question before a change was not answered with yes.
    Cancelled,
    /// Exit code 0: the reader of the output has closed it, and the command has nothing else to do. Nothing is reported.
    Closed,
}

impl Failure {
    /// A failure of what is named first, such as a file.
    pub(crate) fn unreachable(what: impl Display, error: impl Display) -> Self {
        Self::Unreachable(format!("{what}: {error}"))
    }

    /// Writes the reason to standard error.
    pub(crate) fn report(&self) {
        match self {
            Self::Invalid(reason) | Self::Unreachable(reason) | Self::Unauthorized(reason) => {
                print_error(&format!("error: {}", printable_lines(reason)));
            }
            Self::Cancelled => print_error("nothing was changed"),
            Self::Closed => {}
        }
    }
}

/// An error of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::unreachable("standard output", error),
        }
    }
}

impl From<bool> for Answer {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Yes => Self::SUCCESS,
            Answer::No => Self::from(1),
        }
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(_) => Self::from(2),
            Failure::Unreachable(_) => Self::from(3),
            Failure::Unauthorized(_) => Self::from(4),
            Failure::Cancelled => Self::from(1),
            Failure::Closed => Self::SUCCESS,
        }
    }
}
