//! Tests that run as processes of their own.

use std::{env, process::Command};

/// A command that runs one test of this program, and prints what it prints. `module` is the test's `module_path!()`.
pub fn test(module: &str, name: &str) -> Command {
    let (_program, module) = module.split_once("::").expect("a module of a test program");
    let mut command = Command::new(env::current_exe().expect("this test's program"));
    command.args(["--exact", &format!("{module}::{name}"), "--nocapture"]);
    command
}
