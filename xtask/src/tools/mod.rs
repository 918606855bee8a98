//! The programs the tests need besides cargo, and where they come from.

pub(crate) mod python;

use std::env;
use std::path::{Path, PathBuf};

use crate::run::{Outcome, capture, cargo, command, line, succeed};

struct Tool {
    /// Any one of these will do.
    programs: &'static [&'static str],
    apt: &'static [&'static str],
    elsewhere: &'static str,
    why: &'static str,
}

const SERVER: &str = "redis-server";

/// The environment variable that names the server to test in place of [`SERVER`].
pub(crate) const SERVER_VARIABLE: &str = "TOLLGATE_TEST_SERVER";

const TOOLS: &[Tool] = &[
    Tool {
        programs: &[SERVER],
        apt: &["redis-server"],
        elsewhere: "brew install redis, dnf install redis, pacman -S redis",
        why: "the tests start Redis servers of their own",
    },
    Tool {
        programs: &["cc", "gcc", "clang"],
        apt: &["gcc", "libc6-dev"],
        elsewhere: "xcode-select --install, dnf install gcc, pacman -S gcc",
        why: "a test helper is compiled from C",
    },
    Tool {
        programs: &["nginx"],
        apt: &["nginx"],
        elsewhere: "brew install nginx, dnf install nginx, pacman -S nginx",
        why: "an example is asked through a proxy",
    },
    Tool {
        programs: &["chromium", "google-chrome", "google-chrome-stable"],
        apt: &["chromium"],
        elsewhere: "dnf install chromium, pacman -S chromium",
        why: "pages are opened in a browser",
    },
    Tool {
        programs: &["wrk"],
        apt: &["wrk"],
        elsewhere: "brew install wrk, dnf install wrk, pacman -S wrk",
        why: "a benchmark loads an HTTP server",
    },
    Tool {
        programs: &["luacheck"],
        apt: &["lua-check"],
        elsewhere: "luarocks install luacheck, brew install luacheck",
        why: "the scripts for Redis are checked",
    },
    Tool {
        programs: &["promtool"],
        apt: &["prometheus"],
        elsewhere: "brew install prometheus, dnf install golang-github-prometheus, pacman -S prometheus",
        why: "the exposition of metrics and the alert rules are checked",
    },
    Tool {
        programs: &["git"],
        apt: &["git"],
        elsewhere: "brew install git, dnf install git, pacman -S git",
        why: "the check of the sources reads the tracked files",
    },
    Tool {
        programs: &["python3"],
        apt: &["python3", "python3-venv"],
        elsewhere: "brew install python, dnf install python3, pacman -S python",
        why: "tests talk to implementations in Python",
    },
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
    let tools = || {
        TOOLS
            .iter()
            .filter(|tool| tool.programs != [SERVER] || server() == SERVER)
    };
    let missing: Vec<&Tool> = tools().filter(|tool| find(tool).is_none()).collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    for tool in tools() {
        let program = find(tool).ok_or_else(|| absent(tool))?;
        println!("    {program}: {}", tool.why);
    }
    println!("    {}", server_version(&server())?);
    Ok(())
}

/// The server that the tests start: the environment may name another one.
fn server() -> String {
    let named = env::var(SERVER_VARIABLE).ok();
    let named = named.filter(|named| !named.is_empty());
    named.unwrap_or_else(|| SERVER.to_owned())
}

fn find(tool: &Tool) -> Option<&'static str> {
    tool.programs
        .iter()
        .copied()
        .find(|program| on_path(program))
}

/// Whether a program is installed.
pub(crate) fn on_path(program: &str) -> bool {
    let file = format!("{program}{}", env::consts::EXE_SUFFIX);
    // Where servers are, and users other than root don't look.
    let elsewhere = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    env::var_os("PATH").is_some_and(|path| {
        let mut directories = env::split_paths(&path).chain(elsewhere);
        directories.any(|directory| directory.join(&file).is_file())
    })
}

fn absent(tool: &Tool) -> String {
    let programs = tool.programs.join(" or ");
    let Tool { why, elsewhere, .. } = tool;
    format!("{programs} is not on PATH ({why}); install it, for instance: {elsewhere}")
}

fn install(missing: &[&Tool]) -> Outcome {
    if !on_path("apt-get") {
        let reasons: Vec<String> = missing.iter().map(|tool| absent(tool)).collect();
        return Err(reasons.join("; "));
    }
    let packages: Vec<&str> = missing.iter().flat_map(|tool| tool.apt).copied().collect();
    install_packages(&packages)
}

/// Installs Debian's packages of these names.
pub(crate) fn install_packages(packages: &[&str]) -> Outcome {
    println!("    installing {}", packages.join(", "));
    let mut words = vec!["install", "-y", "--no-install-recommends"];
    words.extend(packages);

    // A stale third-party source fails the update without harm to the packages needed here.
    if let Err(reason) = apt_get(&["update"]) {
        println!("    going on with the package lists at hand: {reason}");
    }
    apt_get(&words).map_err(|reason| {
        let packages = packages.join(" ");
        format!("{reason}; install by hand, as root: apt-get install {packages}")
    })
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
