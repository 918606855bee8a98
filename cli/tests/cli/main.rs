//! The program, run as its users run it.

#![allow(missing_docs)]

mod check;
mod diff;
mod program;
mod replay;
