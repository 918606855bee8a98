//! Reading a trace.

use std::{env, fs, path::Path, time::Duration};

use serde_json::Value;
use tollgate::{
    CalendarWindow, FixedWindow, Lease, Limiter, Policy, Quota, limiter::LimiterBuilder,
    store::Store, strategy::Weekday,
};
use tollgate_tests::strategy_kind::StrategyKind;

/// No trace begins earlier.
pub(crate) const EARLIEST: i64 = 1_800_000_000_000_000;

pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) policies: Vec<Value>,
    pub(crate) composite: bool,
    /// Whether a policy has leases.
    pub(crate) leased: bool,
    /// Whether there is a block list.
    pub(crate) blocks: bool,
    pub(crate) ops: Vec<Value>,
}

/// The project's own traces, and those of the folder that `TOLLGATE_TRACES` names.
pub(crate) fn all() -> Vec<Trace> {
    let own = tollgate_tests::repository("tests/redis/conformance/traces");
    let mut traces = folder(&own);
    assert!(traces.len() >= 30, "the project's traces are not all here");
    if let Some(more) = env::var_os("TOLLGATE_TRACES") {
        let more = folder(Path::new(&more));
        assert!(
            !more.is_empty(),
            "TOLLGATE_TRACES names a folder without traces"
        );
        traces.extend(more);
    }
    traces
}

fn folder(folder: &Path) -> Vec<Trace> {
    let files = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    files.iter().map(|file| Trace::read(file)).collect()
}

impl Trace {
    fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).expect("a trace");
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        let composite = trace["strategy"] == "composite";
        Self {
            name: trace["name"].as_str().expect("a name").to_owned(),
            policies: match composite {
                true => trace["policies"].as_array().expect("policies").clone(),
                false => vec![trace.clone()],
            },
            composite,
            leased: trace["lease"].is_object(),
            blocks: trace["blocks"] == true,
            ops: trace["ops"].as_array().expect("ops").clone(),
        }
    }

    pub(crate) fn starts_at(&self) -> i64 {
        self.ops[0]["at_us"].as_i64().expect("at_us")
    }

    /// Its policies are called `p0`, `p1`, ...; with leases one has none and rejects nothing, so that each request is up
    /// to the store, however fast they come. The block list is the last one.
    pub(crate) fn limiter(&self, store: impl Store) -> LimiterBuilder {
        let policies = self.policies.iter().enumerate();
        let limiter = policies.fold(Limiter::builder().store(store), |limiter, (i, policy)| {
            limiter.policy(policy_of(&format!("p{i}"), policy))
        });
        let most = Quota::requests(1_000_000_000_000).per_hour();
        let unleased = Policy::new("unleased", most).strategy(FixedWindow);
        let limiter = match self.leased {
            true => limiter.policy(unleased),
            false => limiter,
        };
        match self.blocks {
            true => limiter.policy(Policy::block_list("blocked")),
            false => limiter,
        }
    }
}

fn policy_of(name: &str, trace: &Value) -> Policy {
    let policy = unleased(name, trace);
    match trace["lease"]["ttl_us"].as_u64() {
        None => policy,
        Some(ttl) => policy.lease(Lease::max_units(64).ttl(Duration::from_micros(ttl))),
    }
}

fn unleased(name: &str, trace: &Value) -> Policy {
    let quota = &trace["quota"];
    let number = |field: &str| {
        quota[field]
            .as_u64()
            .unwrap_or_else(|| panic!("{field}: {quota}"))
    };
    let period = Duration::from_micros(number("period_us"));
    let rate = Quota::requests(number("requests")).per(period);
    let strategy = trace["strategy"].as_str().expect("a strategy");
    let kind = StrategyKind::ALL
        .into_iter()
        .find(|kind| kind.name() == strategy);
    match kind.unwrap_or_else(|| panic!("a trace of an unknown strategy, {strategy}")) {
        StrategyKind::Calendar => calendar(name, number("requests"), period, &trace["options"]),
        StrategyKind::Sliding(_) => {
            let buckets = trace["options"]["buckets"].as_u64().unwrap_or(1);
            StrategyKind::Sliding(buckets as u32).count(name, rate)
        }
        kind if kind.is_even() => kind.count(name, rate.burst(number("burst"))),
        kind => kind.count(name, rate),
    }
}

fn calendar(name: &str, requests: u64, period: Duration, options: &Value) -> Policy {
    let requests = Quota::requests(requests);
    if options["from_epoch"] == true {
        return Policy::new(name, requests.per(period)).strategy(CalendarWindow::from_epoch());
    }
    let Some(zone) = options["zone"].as_str() else {
        return Policy::new(name, requests.per(period)).strategy(even(period, options));
    };
    let quota = match options["unit"].as_str() {
        Some("day") => requests.per_day(),
        Some("week") => requests.per_week(),
        Some("month") => requests.per_month(),
        Some("year") => requests.per_year(),
        other => panic!("a window of an unknown unit, {other:?}"),
    };
    Policy::new(name, quota).strategy(CalendarWindow::zone(zone))
}

/// Windows of equal length that begin at an offset from the epoch, which was a Thursday.
fn even(period: Duration, options: &Value) -> CalendarWindow {
    const DAY: u64 = 86_400_000_000;
    let (period, offset) = (period.as_micros() as u64, options["offset"].as_u64());
    let offset = offset.unwrap_or(0);
    assert_eq!(offset % 1_000_000, 0, "an offset of {offset} µs");
    // A week begins at midnight, of a day that the offset gives too.
    let within = if period == 7 * DAY { DAY } else { period };
    let behind = offset % within;
    let ahead = (within - behind) % within;
    if ahead > DAY {
        return CalendarWindow::west_of_utc(Duration::from_micros(behind));
    }
    let day = [
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
    ][((offset + ahead) / DAY % 7) as usize];
    CalendarWindow::east_of_utc(Duration::from_micros(ahead)).week_starts_on(day)
}
