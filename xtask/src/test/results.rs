//! What test programs print: how many tests passed and failed, and how long each took.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::run::{Outcome, line};

/// Options for `cargo test` with which each test's line ends in its time. libtest has the option in a stable compiler too, but only
/// under this variable, which the compiler itself must not see: it would build everything anew.
pub(crate) const TIMED: [&str; 2] = [
    "--config",
    r#"target."cfg(all())".runner = ["env", "RUSTC_BOOTSTRAP=1"]"#,
];
/// The arguments of the test programs for that, after `--`.
pub(crate) const TIMED_PROGRAM: [&str; 2] = ["-Zunstable-options", "--report-time"];

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Results {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Seconds and name.
    times: Vec<(f64, String)>,
}

impl Results {
    /// Runs a command that runs tests, prints what it prints, and adds its results.
    pub(crate) fn run(&mut self, command: &mut Command) -> Outcome {
        let name = line(command);
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("`{name}` did not start: {error}"))?;
        if let Some(output) = child.stdout.take() {
            for printed in BufReader::new(output).lines().map_while(Result::ok) {
                println!("{printed}");
                self.add(&printed);
            }
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("`{name}`: {status}"))
        }
    }

    /// The slowest tests, each on its line.
    pub(crate) fn slowest(&mut self, count: usize) -> String {
        self.times.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let slowest = self.times.iter().take(count);
        slowest
            .map(|(seconds, name)| format!("    {seconds:>6.1} s  {name}\n"))
            .collect()
    }

    fn add(&mut self, printed: &str) {
        if let Some(result) = printed.strip_prefix("test result: ") {
            for part in result.split([';', '.']) {
                let mut words = part.split_whitespace();
                let count = words.next().and_then(|word| word.parse::<usize>().ok());
                match (count, words.next()) {
                    (Some(count), Some("passed")) => self.passed += count,
                    (Some(count), Some("failed")) => self.failed += count,
                    _ => {}
                }
            }
        } else if let Some((name, seconds)) = timed(printed) {
            self.times.push((seconds, name.to_owned()));
        }
    }
}

/// The name and the time in `test name ... ok <0.125s>`.
fn timed(printed: &str) -> Option<(&str, f64)> {
    let (name, _) = printed.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, time) = printed.rsplit_once('<')?;
    Some((name, time.strip_suffix("s>")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_all_test_programs() {
        let mut results = Results::default();
        for printed in [
            "running 3 tests",
            "test a::b ... ok <0.125s>",
            "test c ... FAILED <1.500s>",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.51s",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.13s",
        ] {
            results.add(printed);
        }
        assert_eq!((results.passed, results.failed), (14, 1));
        assert_eq!(results.slowest(1), "       1.5 s  c\n");
    }
}
