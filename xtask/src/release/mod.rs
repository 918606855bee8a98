//! `cargo xtask release-check`: what a release must pass besides `cargo xtask test`.

mod api;
mod dependencies;
mod documentation;
mod features;
mod packages;
mod skipped;
mod toolchain;
mod unpacked;
mod versions;

use std::path::Path;
use std::time::Instant;

use self::skipped::Skipped;
use crate::run::Outcome;
use crate::{soak, test};

pub(crate) const USAGE: &str = "\
release-check [--only STEP[,STEP]]
                             what a release must pass besides, in this order:";

pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&Path, &mut Skipped) -> Outcome,
}

pub(crate) static STEPS: [Step; 12] = [
    Step {
        name: "package",
        about: "the packages build by themselves and are small",
        run: packages::build,
    },
    Step {
        name: "publish",
        about: "publishing them, without the upload",
        run: packages::publish,
    },
    Step {
        name: "docs",
        about: "the documentation as docs.rs builds it, with the features of items",
        run: documentation::check,
    },
    Step {
        name: "deny",
        about: "licences, sources and versions of dependencies",
        run: dependencies::deny,
    },
    Step {
        name: "external",
        about: "the public API names types of the listed crates alone",
        run: dependencies::external,
    },
    Step {
        name: "api",
        about: "the public API is what docs/public-api.txt lists",
        run: api::check,
    },
    Step {
        name: "semver",
        about: "the public API against that of the last release",
        run: versions::semver,
    },
    Step {
        name: "features",
        about: "lints, with each feature alone",
        run: features::alone,
    },
    Step {
        name: "pairs",
        about: "lints, with each pair of the main features",
        run: features::pairs,
    },
    Step {
        name: "soak",
        about: "a minute of load on stores that fail in every way",
        run: |root, _| soak::minute(root),
    },
    Step {
        name: "msrv",
        about: "the oldest supported compiler",
        run: versions::msrv,
    },
    Step {
        name: "minimal",
        about: "the library builds with the oldest versions of dependencies that it names",
        run: versions::minimal,
    },
];

pub(crate) fn select(options: &[&str]) -> Outcome<Vec<&'static Step>> {
    test::select_of(&STEPS, |step| step.name, options)
}

/// Runs all of the steps, also after one that failed, so that one run lists all that a release lacks.
pub(crate) fn run(root: &Path, steps: &[&Step]) -> Outcome {
    let start = Instant::now();
    let elapsed = || format!("{:.1} s", start.elapsed().as_secs_f64());
    let (mut skipped, mut failed) = (Skipped::default(), Vec::new());
    let count = steps.len();
    for (index, Step { name, about, run }) in steps.iter().enumerate() {
        let number = index + 1;
        println!("==> [{number}/{count}] {name}: {about} ({})", elapsed());
        if let Err(reason) = run(root, &mut skipped) {
            println!("    FAILED {reason}");
            failed.push(format!("step {name}: {reason}"));
        }
    }
    println!("\n{}", summary(&skipped, &failed));
    if failed.is_empty() {
        let passed = if skipped.lines().is_empty() {
            "passed"
        } else {
            "passed but for what was skipped"
        };
        println!(
            "cargo xtask release-check: {passed}, {count} steps in {}",
            elapsed()
        );
        Ok(())
    } else {
        Err(format!("{} of {count} steps", failed.len()))
    }
}

/// What was skipped and what failed, each on its line.
fn summary(skipped: &Skipped, failed: &[String]) -> String {
    let mut lines = Vec::new();
    for (title, entries) in [("Skipped", skipped.lines()), ("Failed", failed)] {
        if entries.is_empty() {
            lines.push(format!("{title}: nothing"));
            continue;
        }
        lines.push(format!("{title}:"));
        lines.extend(entries.iter().map(|entry| format!("  - {entry}")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, run: fn(&Path, &mut Skipped) -> Outcome) -> Step {
        let about = "";
        Step { name, about, run }
    }

    #[test]
    fn a_failed_step_fails_the_command_and_the_others_are_run() {
        let fails = step("fails", |_, _| Err("reason".into()));
        let skips = step("skips", |_, skipped| {
            skipped.add("a program", "install it");
            Ok(())
        });
        let root = Path::new(".");
        assert_eq!(run(root, &[&fails, &skips]), Err("1 of 2 steps".to_owned()));
        assert_eq!(run(root, &[&skips]), Ok(()));
    }

    #[test]
    fn the_summary_lists_what_was_skipped_and_what_failed() {
        let mut skipped = Skipped::default();
        assert_eq!(summary(&skipped, &[]), "Skipped: nothing\nFailed: nothing");
        skipped.add("a program", "install it");
        assert_eq!(
            summary(&skipped, &["step a: b".into()]),
            "Skipped:\n  - a program: install it\nFailed:\n  - step a: b"
        );
    }

    #[test]
    fn steps_are_selected_by_name_in_their_order() {
        let names = |options: &[&str]| -> Outcome<Vec<&str>> {
            Ok(select(options)?.iter().map(|step| step.name).collect())
        };
        assert_eq!(names(&["--only", "msrv,docs"]), Ok(vec!["docs", "msrv"]));
        assert_eq!(names(&[]).map(|all| all.len()), Ok(STEPS.len()));
        assert!(names(&["--only", "fmt"]).is_err());
    }
}
