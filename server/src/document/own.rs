//! Limits in the format of our own.

use tollgate::{CalendarWindow, Limiter, Policy, Quota};

use super::{
    fields::{Fields, text_of, wrong},
    mistake::{Report, quoted},
    name::PolicyPath,
    reference::check_replaced,
    yaml::Node,
};
use crate::rules::{CountedBy, Limit, Unit};

const KEYS: [&str; 8] = [
    "name",
    "quota",
    "strategy",
    "calendar",
    "on_reject",
    "independent",
    "unlimited",
    "replaces",
];

/// The strategy without a name in a document.
pub(super) const DEFAULT: &str = "gcra";

/// The text of the strategy that `calendar: true` stands for.
pub(super) const CALENDAR: &str = "calendar_window utc";

/// The most limits of a rule.
const MAX_LIMITS: usize = 16;

/// The limits of a rule.
pub(super) fn limits(fields: &Fields<'_>, path: &PolicyPath, report: &mut Report) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    let nodes = fields.list("limits", report);
    if let Some(first) = nodes.get(MAX_LIMITS) {
        let message = format!("too many limits of a rule; expected at most {MAX_LIMITS}");
        report.add(Some(first.position), message);
    }
    for (index, node) in nodes.iter().take(MAX_LIMITS).enumerate() {
        let Some(fields) = Fields::of(node, "a limit", &KEYS, report) else {
            continue;
        };
        let name = fields.text("name", report).filter(|name| !name.is_empty());
        let path = match (index, name) {
            (0, _) => path.clone(),
            (_, Some(name)) => path.limit(name),
            (_, None) => {
                let message = "a limit without a name that is not the first of its rule; expected a name, under which it is counted";
                report.add(Some(node.position), message);
                continue;
            }
        };
        if name.is_some() && limits.iter().any(|limit| limit.name.as_deref() == name) {
            let message = "a name that another limit of the rule has; expected each name once";
            report.add(fields.position_of("name"), message);
        }
        limits.extend(limit(&fields, name, &path, report));
    }
    limits
}

fn limit(
    fields: &Fields<'_>,
    name: Option<&str>,
    path: &PolicyPath,
    report: &mut Report,
) -> Option<Limit> {
    let replaces = fields.list("replaces", report).iter();
    let replaces = replaces.filter_map(|node| {
        let replaced = text_of(node, "replaces", report)?;
        check_replaced(replaced, name, node, report)
    });
    let replaces = replaces.collect();
    let counted = if fields.bool("unlimited", report) {
        let others = ["quota", "strategy", "calendar", "on_reject", "independent"];
        reject_keys(fields, &others, "an unlimited limit", report);
        None
    } else {
        Some(counted(fields, path, report)?)
    };
    Some(Limit {
        name: name.map(str::to_owned),
        replaces,
        counted,
    })
}

fn counted(fields: &Fields<'_>, path: &PolicyPath, report: &mut Report) -> Option<CountedBy> {
    let independent = fields.bool("independent", report);
    let charges_rejected = match fields.entry("on_reject") {
        None => false,
        Some(entry) => match text_of(&entry.node, "on_reject", report)? {
            "free" => false,
            "charge" => true,
            _ => {
                wrong("on_reject", &entry.node, "charge or free", report);
                return None;
            }
        },
    };
    let Some(entry) = fields.entry("quota") else {
        let message =
            "a limit without a quota; expected a quota such as 100/min, or unlimited: true";
        report.add(Some(fields.position), message);
        return None;
    };
    let quota = quota(&entry.node, report)?;
    let unit = Unit::of_period(quota.period());
    let mut policy = Policy::new(path.policy_name(), quota).by_hand();
    if charges_rejected {
        policy = policy.charge_rejected(true);
    }
    if quota.amount() > 0 {
        policy = strategy(fields, policy, &entry.node, report)?;
    } else {
        reject_keys(fields, &["strategy", "calendar"], "a quota of 0", report);
        if unit.is_none() || quota.capacity() > 0 {
            let expected = "a quota of 0 per second, minute, hour, day, week, month or year";
            wrong("quota", &entry.node, expected, report);
        }
        // That of the reference format: it counts nothing.
        policy = policy.strategy(CalendarWindow::from_epoch());
    }
    Some(CountedBy {
        requests_per_unit: quota.amount(),
        unit,
        policy,
        independent,
    })
}

fn quota(node: &Node, report: &mut Report) -> Option<Quota> {
    let text = text_of(node, "quota", report)?;
    match text.parse::<Quota>() {
        Ok(quota) if quota.is_concurrent() => {
            let expected = "a rate: the protocol does not say when a request ends";
            wrong("quota", node, expected, report);
            None
        }
        Ok(quota) => Some(quota),
        Err(_) => {
            let expected = "a quota such as 100/min, 10/s burst 20 or 5000/month";
            wrong("quota", node, expected, report);
            None
        }
    }
}

/// The policy under the strategy that the fields set.
fn strategy(
    fields: &Fields<'_>,
    policy: Policy,
    quota: &Node,
    report: &mut Report,
) -> Option<Policy> {
    let is_calendar = fields.bool("calendar", report);
    let set = fields.entry("strategy");
    if is_calendar && set.is_some() {
        let message = format!(
            "calendar together with strategy; expected one of them: calendar: true is the strategy {CALENDAR}"
        );
        report.add(fields.position_of("calendar"), message);
        return None;
    }
    if is_calendar && Unit::of_period(policy.quota().period()).is_none() {
        let expected =
            "a period of one second, minute, hour, day, week, month or year under calendar: true";
        wrong("quota", quota, expected, report);
        return None;
    }
    let (text, node) = match set {
        Some(entry) => (text_of(&entry.node, "strategy", report)?, &entry.node),
        None if is_calendar => (CALENDAR, quota),
        None => (DEFAULT, quota),
    };
    // A request to the service has no end to wait for, and none is banned.
    if let Some("concurrency" | "ban") = text.split_whitespace().next() {
        wrong("strategy", node, "one of a rate, such as gcra", report);
        return None;
    }
    let policy = policy.strategy_text(text).map_err(|error| {
        let (found, expected) = (error.value(), error.expected());
        let message = format!("strategy: {found}; expected {expected}");
        report.add(Some(node.position), message);
    });
    let policy = policy.ok()?;
    match Limiter::builder().policy(policy.clone()).build() {
        Ok(_) => Some(policy),
        Err(problem) => {
            let message = format!("quota under {}: {problem}", quoted(text));
            report.add(Some(quota.position), message);
            None
        }
    }
}

/// Reports keys that have no meaning for a limit.
fn reject_keys(fields: &Fields<'_>, keys: &[&str], limit: &str, report: &mut Report) {
    for key in keys {
        if fields.entry(key).is_some() {
            let message = format!("{key} of {limit}; expected no {key}");
            report.add(fields.position_of(key), message);
        }
    }
}
