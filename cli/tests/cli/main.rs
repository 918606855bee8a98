//! The program, run as its users run it.

#![allow(missing_docs)]

mod changes;
mod check;
mod confirm;
mod connection;
mod diff;
mod program;
mod questions;
mod replay;
mod served;
