//! The toolchains that rustup has installed.

use std::path::Path;
use std::process::Command;

use crate::run::{capture, cargo_by, command};

/// An installed toolchain of a channel: `nightly`, or a version such as `1.88`.
pub(super) struct Toolchain(String);

impl Toolchain {
    /// `None` if there is none, or no rustup.
    pub(super) fn find(channel: &str) -> Option<Self> {
        let (list, _) = capture(&mut command("rustup", &["toolchain", "list"])).ok()?;
        find(&list, channel).map(|name| Self(name.to_owned()))
    }

    /// Its cargo, in the workspace's root.
    pub(super) fn cargo(&self, root: &Path, arguments: &[&str]) -> Command {
        cargo_by(root, &self.0, arguments)
    }
}

/// How to install one.
pub(super) fn install(channel: &str) -> String {
    format!("run `rustup toolchain install {channel} --profile minimal`")
}

fn find<'a>(list: &'a str, channel: &str) -> Option<&'a str> {
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let mut found = names.filter(|name| {
        let rest = name.strip_prefix(channel);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
    });
    found.next()
}

#[test]
fn a_toolchain_is_found_by_channel_and_by_version() {
    let list = "stable-x86_64-unknown-linux-gnu (active, default)\n\
                nightly-2026-05-20-x86_64-unknown-linux-gnu\n\
                1.88.0-x86_64-unknown-linux-gnu\n";
    let found = [
        ("stable", Some("stable-x86_64-unknown-linux-gnu")),
        (
            "nightly",
            Some("nightly-2026-05-20-x86_64-unknown-linux-gnu"),
        ),
        ("1.88", Some("1.88.0-x86_64-unknown-linux-gnu")),
        ("1.8", None),
        ("beta", None),
    ];
    for (channel, name) in found {
        assert_eq!(find(list, channel), name, "{channel}");
    }
}
