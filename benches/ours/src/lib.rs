//! What tollgate's speed is measured by.
//!
//! Every figure is a ratio of contenders that took turns in one run on one machine: absolute times say little on
//! machines that others share. `cargo xtask bench` runs it all.

pub mod cases;
pub mod chart;
pub mod contenders;
pub mod delayed_link;
pub mod keys;
pub mod load;
pub mod outcome;
pub mod plan;
pub mod report;
pub mod runner;
pub mod wrk;

use cases::Case;
use outcome::Outcome;
use plan::Options;
use report::Setting;

/// Runs what the command line asks for among `cases`, prints the table, and writes `NAME.json`, `.md` and `.svg` to
/// the folder it names.
///
/// # Errors
///
/// If the command line isn't understood, or results can't be written.
pub async fn run(name: &str, cases: &[Case]) -> Result<(), String> {
    let options = Options::parse(std::env::args().skip(1))
        .map_err(|mistake| format!("{mistake}\n\n{}\n\ncases:\n{}", plan::USAGE, listed(cases)))?;
    let strange = |name: &&String| !cases.iter().any(|case| case.name == **name);
    if let Some(unknown) = options.only.iter().find(strange) {
        return Err(format!(
            "no such case: {unknown}\n\ncases:\n{}",
            listed(cases)
        ));
    }
    if cfg!(debug_assertions) {
        eprintln!("not optimised: figures of this build say nothing (cargo xtask bench)");
    }
    let outcomes = measure(cases, &options).await;
    let setting = Setting::here(&options.plan);
    print!("{}", report::table(&setting, &outcomes));
    match &options.out {
        Some(folder) => report::write(folder, name, &setting, &outcomes)
            .map_err(|error| format!("{}: {error}", folder.display())),
        None => Ok(()),
    }
}

async fn measure(cases: &[Case], options: &Options) -> Vec<Outcome> {
    let asked =
        |case: &&Case| options.only.is_empty() || options.only.iter().any(|name| name == case.name);
    let mut outcomes = Vec::new();
    for case in cases.iter().filter(asked) {
        eprintln!("{}: {}", case.name, case.about);
        outcomes.extend((case.run)(options.plan.clone()).await);
    }
    outcomes
}

fn listed(cases: &[Case]) -> String {
    let line = |case: &Case| format!("  {:<10} {}\n", case.name, case.about);
    cases.iter().map(line).collect()
}
