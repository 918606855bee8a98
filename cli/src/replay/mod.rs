//! `tollgate replay`: a document's policies on the requests of access logs, in virtual time.

use std::{
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use clap::Args;
use tollgate::{
    Quota,
    config::{Document, MissingKeySection, PolicyDocument},
};

use self::{
    log::{FieldOption, Lines},
    order::Order,
    report::{PolicyReport, Report},
    request::Entry,
    simulation::Simulation,
};
use crate::{
    document::{Code, InProcess, invalid},
    exit::{Answer, Failure, Outcome},
    output::Output,
};

mod log;
mod order;
mod report;
mod request;
mod simulation;

/// Run a configuration file over access logs in virtual time, and report how many requests would have been rejected.
///
/// Logs are in the common or combined format of Apache and nginx, or have a JSON object in each line, such as those of Caddy,
/// Traefik and nginx. Counts are in process: no store is called.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The configuration file, in TOML, YAML or JSON.
    file: PathBuf,
    /// The access logs, from the oldest on; - for standard input.
    #[arg(required = true, value_name = "ACCESS_LOG")]
    logs: Vec<PathBuf>,
    #[command(flatten)]
    code: Code,
    /// How many of the most rejected keys of each policy to print.
    #[arg(long, value_name = "KEYS", default_value_t = 3)]
    top: usize,
    /// Exit with code 1 if more than this share of the requests is rejected, from 0 to 1, such as 0.01 for 1 %.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    fail_over: Option<f64>,
    /// By how many seconds at most the lines of a log are out of order.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    window: u32,
    /// Spread the requests of a second evenly over it, for logs with times of whole seconds.
    #[arg(long)]
    spread: bool,
    /// The names of fields in JSON logs: WHAT=FIELD, where WHAT is time (of the end), start, duration, duration_ms, duration_us,
    /// duration_ns, peer, method, uri, host, status, headers or header:NAME, and FIELD may be a path such as request.uri. Several
    /// are separated by commas.
    #[arg(long = "field", value_name = "WHAT=FIELD", value_delimiter = ',')]
    fields: Vec<FieldOption>,
}

/// The most keys that are counted at once, unless the document says otherwise.
const DEFAULT_MAX_KEYS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999_999);

/// A permit TTL beyond the end of any request that is replayed: renewal keeps the permits of real ones.
const PERMIT_TTL: &str = "concurrency ttl 1day";

const SECOND_US: i64 = 1_000_000;

pub(crate) fn run(options: &Options, output: &Output) -> Outcome {
    let mut loaded = InProcess::load(&options.file, options.code)?;
    loaded.report_assumed(&options.file);
    adapt(&mut loaded.document);
    let mut replay = Replay::new(&loaded, options)?;
    for log in &options.logs {
        replay
            .read(log)
            .map_err(|error| Failure::unreachable(log.display(), error))?;
    }
    let report = replay.finish();
    if report.requests == 0 {
        let first = report.first_unreadable.as_deref();
        let reason = first.unwrap_or("they are empty");
        return Err(Failure::unreachable("no request in the logs", reason));
    }
    output.print(|| report.to_json(), || report.to_text())?;
    Ok(match options.fail_over {
        Some(share) if report.rejected_share() > share => Answer::No,
        _ => Answer::Yes,
    })
}

/// A share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share from 0 to 1 is expected, such as 0.01 for 1 %".to_owned())
}

/// Changes what depends on time or on requests that the log doesn't show.
fn adapt(document: &mut Document) {
    for policy in document.policies.values_mut() {
        let quota = policy.quota.as_ref().and_then(|quota| quota.parse().ok());
        let is_in_flight = quota.is_some_and(|quota: Quota| quota.is_concurrent());
        if is_in_flight && strategy(policy).is_none_or(|name| name == "concurrency") {
            policy.strategy = Some(PERMIT_TTL.to_owned());
        }
        if policy.by_hand != Some(true) && policy.block_list != Some(true) {
            policy.missing_key = Some(MissingKeySection::Skip);
        }
    }
}

/// The name of a policy's strategy, without its settings.
fn strategy(policy: &PolicyDocument) -> Option<&str> {
    policy.strategy.as_ref()?.split_ascii_whitespace().next()
}

/// The empty reports of the policies.
fn policies(document: &Document, simulation: &Simulation) -> Vec<PolicyReport> {
    let policies = simulation.policies();
    let reports = policies.iter().filter_map(|policy| {
        let section = document.policies.get(policy.name())?;
        let is_block_list = section.block_list == Some(true);
        let role = if section.shadow == Some(true) {
            "shadow"
        } else if is_block_list || strategy(section) == Some("ban") {
            "ban"
        } else {
            "live"
        };
        let quota = if is_block_list {
            String::new()
        } else {
            policy.quota().to_string()
        };
        Some(PolicyReport::new(policy.name(), quota, role))
    });
    reports.collect()
}

/// A run, and what it has counted so far.
struct Replay<'a> {
    options: &'a Options,
    simulation: Simulation,
    order: Order,
    report: Report,
    /// The arrival of the last request that was replayed.
    last_us: i64,
}

impl<'a> Replay<'a> {
    fn new(loaded: &InProcess, options: &'a Options) -> Outcome<Self> {
        let builder = loaded
            .document
            .builder(&loaded.registry)
            .map_err(|error| invalid(&error))?;
        let max_keys = loaded.store.as_ref().and_then(|store| store.max_keys);
        let simulation = Simulation::new(builder, max_keys.unwrap_or(DEFAULT_MAX_KEYS))
            .map_err(|error| Failure::Invalid(format!("{}: {error}", options.file.display())))?;
        let policies = policies(&loaded.document, &simulation);
        Ok(Self {
            options,
            simulation,
            order: Order::new(i64::from(options.window) * SECOND_US),
            report: Report::new(policies, options.top),
            last_us: 0,
        })
    }

    /// Replays the requests of a log, but for those that later lines may precede.
    fn read(&mut self, log: &Path) -> io::Result<()> {
        let mut lines = Lines::open(log)?;
        while let Some(line) = lines.next()? {
            let text = line.text.ok_or("longer than 64 KiB");
            let record = text.and_then(|text| log::parse(&text, &self.options.fields));
            match record.and_then(Entry::new) {
                Ok(entry) => self.order.push(entry),
                Err(reason) => {
                    let log = log.display().to_string();
                    self.report.add_unreadable(&log, line.number, reason);
                }
            }
            while let Some(entries) = self.order.pop_due() {
                self.replay(entries);
            }
        }
        Ok(())
    }

    /// Replays the requests of one instant.
    fn replay(&mut self, entries: Vec<Entry>) {
        let count = entries.len() as i64;
        for (mut entry, index) in entries.into_iter().zip(0..) {
            if self.options.spread {
                entry.arrived_us += index * SECOND_US / count;
            }
            if entry.arrived_us < self.last_us {
                entry.arrived_us = self.last_us;
                self.report.late += 1;
            }
            self.last_us = entry.arrived_us;
            let decision = self.simulation.replay(entry);
            self.report.add(self.last_us, decision.as_ref());
        }
    }

    fn finish(mut self) -> Report {
        while let Some(entries) = self.order.pop() {
            self.replay(entries);
        }
        self.report.evicted = self.simulation.evicted();
        self.report
    }
}
