//! `tollgate replay`: a document's policies on the requests of access logs, in virtual time.

use std::{fs, num::NonZeroUsize, path::PathBuf};

use clap::Args;
use tollgate::{
    Key,
    config::Document,
    extract::MissingKey,
    settings::{Conditions, PolicySettings, Slot},
};

use self::{
    jumps::{Checked, Jumps},
    log::{DurationUnit, FieldNames, FieldOption, Input},
    order::{Order, Spread},
    report::{Circumstances, Policy, Report, Role, Tally},
    request::{Entry, LoggedAt, Place},
    simulation::Simulation,
};
use crate::{
    document::{Code, InProcess, invalid},
    exit::{Answer, Failure, Outcome},
    output::Output,
};

mod chart;
mod jumps;
mod log;
mod order;
mod report;
mod request;
mod simulation;

/// Run a configuration file over access logs in virtual time, and report which requests would have been rejected.
///
/// Logs are in the common or combined format of Apache and nginx, or have a JSON object in each line, such as those of Caddy,
/// Traefik and nginx; they may be compressed by gzip. Counts are in process: no store is called.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The configuration file, in TOML, YAML or JSON.
    file: PathBuf,
    /// The access logs, from the oldest on; - for standard input.
    #[arg(required = true, value_name = "ACCESS_LOG")]
    logs: Vec<PathBuf>,
    #[command(flatten)]
    code: Code,
    /// Draw a chart of each policy's admitted and rejected requests to this file, in SVG; - for standard output, and the report
    /// is then written to standard error.
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// How many of the most rejected keys of each policy to print.
    #[arg(long, value_name = "KEYS", default_value_t = 5)]
    top: usize,
    /// Exit with code 1 if more than this share of the requests is rejected, from 0 to 1, such as 0.01 for 1 %.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    fail_over: Option<f64>,
    /// Sort all requests by time, in memory.
    #[arg(long)]
    sort: bool,
    /// By how many seconds at most the lines of a log are out of order.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=86_400))]
    window: u32,
    /// Spread the requests of a second evenly over it, where a log has times of whole seconds.
    #[arg(long)]
    spread: bool,
    /// What the time of a line is. Unless given: the end, or the arrival if the field's name begins with "start".
    #[arg(long, value_name = "INSTANT")]
    logged_at: Option<LoggedAt>,
    /// The names of fields in JSON logs: WHAT=FIELD, where WHAT is time, peer, method, uri, host, status, duration, headers or
    /// header:NAME, and FIELD may be a path such as request.uri. Several are separated by commas.
    #[arg(long = "field", value_name = "WHAT=FIELD", value_delimiter = ',')]
    fields: Vec<FieldOption>,
    /// The unit of durations in JSON logs that are numbers. Unless given: as the field's name ends, or seconds.
    #[arg(long, value_name = "UNIT")]
    duration_unit: Option<DurationUnit>,
    /// Do with requests without a key what the document says. Unless given, a policy does not apply to requests whose key the log
    /// doesn't show.
    #[arg(long)]
    missing_keys: bool,
    /// The most keys that are counted at once. Unless given: store.max_keys of the configuration file, or 1000000.
    #[arg(long, value_name = "KEYS")]
    max_keys: Option<NonZeroUsize>,
}

/// The most keys that are counted at once, unless the arguments or the document say otherwise.
const DEFAULT_MAX_KEYS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999_999);

/// A permit TTL beyond the end of any request that is replayed: renewal keeps the permits of real ones.
const PERMIT_TTL: &str = "concurrency ttl 1day";

pub(crate) fn run(options: &Options, output: &Output) -> Outcome {
    let mut loaded = InProcess::load(&options.file, options.code)?;
    loaded.report_assumed(&options.file);
    adapt(&mut loaded.document, options.missing_keys);
    let mut replay = Replay::new(&loaded, options)?;
    let names = FieldNames::new(&options.fields, options.duration_unit);
    for log in &options.logs {
        replay
            .read(log, &names, options.logged_at)
            .map_err(|error| Failure::unreachable(log.display(), error))?;
    }
    let report = replay.finish(options.top);
    if report.requests == 0 {
        let lines = report.unreadable.lines;
        let first = report.unreadable.first.first();
        let reason = first.map_or("they are empty".to_owned(), |first| {
            format!(
                "{lines} lines have none; {}:{}: {}",
                first.log, first.line, first.reason
            )
        });
        return Err(Failure::unreachable("no request in the logs", reason));
    }
    let json = || serde_json::to_value(&report).unwrap_or_default();
    let text = || report.to_string();
    match &options.chart {
        Some(path) if path.as_os_str() == "-" => {
            output.print_beside(&chart::draw(&report, &title(options)), json, text)?;
        }
        Some(path) => {
            let chart = chart::draw(&report, &title(options));
            fs::write(path, chart).map_err(|error| Failure::unreachable(path.display(), error))?;
            output.print(json, text)?;
        }
        None => output.print(json, text)?,
    }
    Ok(match options.fail_over {
        Some(ratio) if report.rejected_share > ratio => Answer::No,
        _ => Answer::Yes,
    })
}

/// A share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share from 0 to 1 is expected, such as 0.01 for 1 %".to_owned())
}

/// The names of the files, without their folders.
fn title(options: &Options) -> String {
    let name = |path: &PathBuf| {
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let logs: Vec<_> = options.logs.iter().map(name).collect();
    format!("{} on {}", name(&options.file), logs.join(", "))
}

/// Changes what depends on time or on requests that the log doesn't show.
fn adapt(document: &mut Document, reject_missing_keys: bool) {
    let names: Vec<_> = document
        .policies
        .iter()
        .map(|(name, _)| name.to_owned())
        .collect();
    for name in names {
        let Some(policy) = document.policies.get_mut(&name) else {
            continue;
        };
        let is_concurrency = |strategy: &str| strategy.trim().starts_with("concurrency");
        if is_in_flight(policy)
            && policy
                .strategy
                .as_ref()
                .and_then(Slot::text)
                .is_none_or(is_concurrency)
        {
            policy.strategy = Some(Slot::named(PERMIT_TTL));
        }
        if !reject_missing_keys && !is_by_hand(policy) {
            policy.missing_key = Some(MissingKey::Skip);
        }
        // Only the application can look up quotas.
        policy.quota_lookup = None;
    }
}

fn is_by_hand(policy: &PolicySettings) -> bool {
    policy.by_hand == Some(true) || policy.block_list == Some(true)
}

fn is_in_flight(policy: &PolicySettings) -> bool {
    policy.quota.is_some_and(|quota| quota.is_concurrent())
}

/// The policies in the order in which decisions number them.
fn policies(document: &Document, simulation: &Simulation) -> Vec<Policy> {
    let no_conditions = |skip: &Conditions, only: &Conditions| {
        *skip == Conditions::default() && *only == Conditions::default()
    };
    let for_all = no_conditions(&document.skip, &document.only)
        && document.deny.is_empty()
        && document.allow.is_empty();
    let of_section = |policy: &tollgate::Policy| {
        let section = document.policies.get(policy.name())?;
        let is_block_list = section.block_list == Some(true);
        let is_ban = is_block_list
            || section
                .strategy
                .as_ref()
                .and_then(Slot::text)
                .is_some_and(is_ban);
        Some(Policy {
            name: policy.name().to_owned(),
            quota: match is_block_list {
                true => "by hand".to_owned(),
                false => policy.quota().to_string(),
            },
            role: if section.shadow == Some(true) || section.shadow_of.is_some() {
                Role::Shadow
            } else if is_ban {
                Role::Ban
            } else {
                Role::Live
            },
            is_in_flight: policy.quota().is_concurrent(),
            is_by_hand: is_by_hand(section),
            is_for_all: for_all && !is_ban && no_conditions(&section.skip, &section.only),
        })
    };
    let policies = simulation.policies();
    policies.iter().filter_map(of_section).collect()
}

fn is_ban(strategy: &str) -> bool {
    strategy.split_ascii_whitespace().next() == Some("ban")
}

/// A run, and what it has counted so far.
struct Replay {
    simulation: Simulation,
    policies: Vec<Policy>,
    tally: Tally,
    /// The names of the logs so far.
    logs: Vec<String>,
    /// `None` if all requests are sorted, so that lines in any order are expected.
    jumps: Option<Jumps>,
    order: Order,
    spread: Option<Spread>,
    circumstances: Circumstances,
}

impl Replay {
    fn new(loaded: &InProcess, options: &Options) -> Outcome<Self> {
        let builder = loaded.document.builder(&loaded.registry);
        let builder = builder.map_err(|error| invalid(&error))?;
        let of_document = loaded.store.as_ref().and_then(|store| store.max_keys);
        let max_keys = options.max_keys.or(of_document).unwrap_or(DEFAULT_MAX_KEYS);
        let simulation = Simulation::new(builder, max_keys)
            .map_err(|error| Failure::Invalid(format!("{}: {error}", options.file.display())))?;
        let policies = policies(&loaded.document, &simulation);
        let window_us = i64::from(options.window) * 1_000_000;
        Ok(Self {
            tally: Tally::new(policies.len()),
            simulation,
            policies,
            logs: Vec::new(),
            jumps: (!options.sort).then(Jumps::default),
            order: Order::new((!options.sort).then_some(window_us)),
            spread: options.spread.then(Spread::default),
            circumstances: Circumstances {
                spreads: options.spread,
                ..Circumstances::default()
            },
        })
    }

    /// Replays the requests of a log, but for those that later lines may precede.
    fn read(
        &mut self,
        log: &std::path::Path,
        names: &FieldNames,
        logged_at: Option<LoggedAt>,
    ) -> std::io::Result<()> {
        let mut input = Input::open(log)?;
        let name = input.name().to_owned();
        self.logs.push(name.clone());
        let log = self.logs.len() - 1;
        while let Some(line) = input.next_line()? {
            let entry = match line.bytes {
                None => Err("longer than 64 KiB"),
                Some(bytes) => {
                    let text = String::from_utf8_lossy(bytes);
                    let record = log::parse(&text, names);
                    let place = Place {
                        log,
                        line: line.number,
                    };
                    record.and_then(|record| Entry::new(record, logged_at, place))
                }
            };
            match entry {
                Ok(entry) => self.check(entry),
                Err(reason) => self
                    .circumstances
                    .unreadable
                    .add(&name, line.number, reason),
            }
        }
        Ok(())
    }

    /// Replays a request, unless the lines around its own show that its time is wrong.
    fn check(&mut self, entry: Entry) {
        let Some(jumps) = &mut self.jumps else {
            return self.add(entry);
        };
        let Checked {
            outliers,
            confirmed,
            entry,
        } = jumps.push(entry);
        for Place { log, line } in outliers.iter().map(|outlier| outlier.place) {
            let reason = "its time is more than a day after that of the lines around it";
            self.circumstances
                .unreadable
                .add(&self.logs[log], line, reason);
        }
        for entry in confirmed.into_iter().chain(entry) {
            self.add(entry);
        }
    }

    fn add(&mut self, entry: Entry) {
        self.tally.add_logged(&entry);
        match &mut self.spread {
            None => self.order.push(entry),
            Some(spread) => spread
                .push(entry)
                .into_iter()
                .for_each(|entry| self.order.push(entry)),
        }
        while let Some(entry) = self.order.pop() {
            self.replay(entry);
        }
    }

    fn replay(&mut self, entry: Entry) {
        let (at, client) = (entry.at, entry.peer.map(Key::ip));
        let tally = &mut self.tally;
        self.simulation
            .replay(entry, |decided| tally.add(at, client, decided));
    }

    fn finish(mut self, top: usize) -> Report {
        let held = self.jumps.as_mut().map(Jumps::finish);
        for entry in held.unwrap_or_default() {
            self.add(entry);
        }
        for entry in self
            .spread
            .take()
            .map(|mut spread| spread.finish())
            .unwrap_or_default()
        {
            self.order.push(entry);
        }
        while let Some(entry) = self.order.release() {
            self.replay(entry);
        }
        let late = self.order.late();
        self.circumstances.late = late.requests;
        self.circumstances.first_late = late
            .first
            .map(|first| (self.logs[first.log].clone(), first.line));
        self.circumstances.evicted = self.simulation.evicted();
        Report::new(&self.tally, &self.policies, top, self.circumstances)
    }
}
