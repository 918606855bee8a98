//! The name of this machine.

use std::{env, fs};

/// The machine's name, as Linux has it, or else as the environment does; empty if neither does.
pub(super) fn name() -> String {
    let of_linux = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let of_environment = || {
        ["HOSTNAME", "COMPUTERNAME"]
            .into_iter()
            .find_map(|name| env::var(name).ok())
    };
    let name = of_linux.or_else(of_environment).unwrap_or_default();
    name.trim().to_owned()
}
