//! The programs the tests need besides cargo, and where they come from.

use std::env;
use std::path::{Path, PathBuf};

use crate::python;
use crate::run::{Outcome, capture, cargo, command, line, succeed};

/// Programs of which any one will do, the packages of Debian that have one, and what for.
type Tool = (
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

const SERVER: &str = "redis-server";

/// The environment variable that names the server to test in place of [`SERVER`].
pub(crate) const SERVER_VARIABLE: &str = "TOLLGATE_TEST_SERVER";

#[rustfmt::skip]
const TOOLS: &[Tool] = &[
    (&[SERVER], &["redis-server"], "tests start Redis servers of their own"),
    (&["cc", "gcc", "clang"], &["gcc", "libc6-dev"], "a test helper is compiled from C"),
    (&["nginx"], &["nginx"], "an example is asked through a proxy"),
    (&["chromium", "google-chrome", "google-chrome-stable"], &["chromium"], "pages are opened in a browser"),
    (&["wrk"], &["wrk"], "a benchmark loads an HTTP server"),
    (&["luacheck"], &["lua-check"], "the scripts for Redis are checked"),
    (&["promtool"], &["prometheus"], "the exposition of metrics and the alert rules are checked"),
    (&["git"], &["git"], "the check of the sources reads the tracked files"),
    (&["python3"], &["python3", "python3-venv"], "tests talk to implementations in Python"),
];

const COMPONENTS: &[(&str, &str)] = &[("fmt", "rustfmt"), ("clippy", "clippy")];

/// Runs apt-get. Packages that it installs do not start their services: while it runs, a `policy-rc.d` forbids it, unless the
/// machine has one of its own.
const APT_GET: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" || exit
fi
DEBIAN_FRONTEND=noninteractive apt-get "$@"
"#;

/// Below this, Redis lacks commands and options the scripts and tests rely on.
const OLDEST_REDIS: (u32, u32) = (6, 2);

pub(crate) fn ready(root: &Path) -> Outcome {
    // First, since no package manager can help with these.
    for (subcommand, component) in COMPONENTS {
        let mut version = cargo(root, &[subcommand, "--version"]);
        let (text, code) = capture(&mut version)?;
        if code != Some(0) {
            return Err(format!(
                "no {component}: run `rustup component add {component}`"
            ));
        }
        println!("    {}", text.trim());
    }
    let tools = TOOLS.iter();
    let tools = tools.filter(|(programs, ..)| *programs != [SERVER] || server() == SERVER);
    let is_missing = |tool: &&Tool| !tool.0.iter().any(|program| on_path(program));
    let missing: Vec<&Tool> = tools.clone().filter(is_missing).collect();
    if !missing.is_empty() {
        let packages: Vec<&str> = missing.iter().flat_map(|tool| tool.1).copied().collect();
        install_packages(&packages)?;
    }
    for (programs, _, why) in tools.clone() {
        println!("    {}: {why}", programs.join(" or "));
    }
    if let Some((programs, _, why)) = tools.clone().find(is_missing) {
        return Err(format!("{} is not on PATH ({why})", programs.join(" or ")));
    }
    println!("    {}", server_version(&server())?);
    python::ready(root)
}

/// The server that the tests start: the environment may name another one.
fn server() -> String {
    let named = env::var(SERVER_VARIABLE).ok();
    let named = named.filter(|named| !named.is_empty());
    named.unwrap_or_else(|| SERVER.to_owned())
}

/// Whether a program is installed.
fn on_path(program: &str) -> bool {
    let file = format!("{program}{}", env::consts::EXE_SUFFIX);
    // Where servers are, and users other than root don't look.
    let elsewhere = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    env::var_os("PATH").is_some_and(|path| {
        let mut directories = env::split_paths(&path).chain(elsewhere);
        directories.any(|directory| directory.join(&file).is_file())
    })
}

/// Installs Debian's packages of these names.
pub(crate) fn install_packages(packages: &[&str]) -> Outcome {
    let list = packages.join(" ");
    if !on_path("apt-get") {
        return Err(format!(
            "there is no apt-get; install these packages of Debian by other means: {list}"
        ));
    }
    println!("    installing {list}");
    let mut words = vec!["install", "-y", "--no-install-recommends"];
    words.extend(packages);

    // A stale third-party source fails the update without harm to the packages needed here.
    if let Err(reason) = apt_get(&["update"]) {
        println!("    going on with the package lists at hand: {reason}");
    }
    apt_get(&words)
        .map_err(|reason| format!("{reason}; install by hand, as root: apt-get install {list}"))
}

fn apt_get(arguments: &[&str]) -> Outcome {
    // Through `sh`, because sudo drops the caller's environment.
    let mut words = vec!["sh", "-c", APT_GET, "apt-get"];
    words.extend(arguments);
    if !is_root()? {
        words.splice(0..0, ["sudo", "-n"]);
    }
    succeed(&mut command(words[0], &words[1..]))
}

fn is_root() -> Outcome<bool> {
    let (user, _) = capture(&mut command("id", &["-u"]))?;
    Ok(user.trim() == "0")
}

/// The line with its version that a server prints. A server that is too old is an error.
pub(crate) fn server_version(program: &str) -> Outcome<String> {
    let mut command = command(program, &["--version"]);
    let (text, _) = capture(&mut command)?;
    let text = text.trim();
    let version = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .ok_or_else(|| format!("`{}` tells no version: {text}", line(&command)))?;
    let (major, minor) = OLDEST_REDIS;
    if numbers(version).is_some_and(|found| found >= OLDEST_REDIS) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{program} {version} is too old: {major}.{minor} or later is needed"
        ))
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}
