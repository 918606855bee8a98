//! Limits in the format of our own.

use serde_saphyr::{Location, Spanned};
use tollgate::{CalendarWindow, Limiter, Policy, Quota};

use super::{
    mistake::{Report, quoted},
    name::PolicyPath,
    reference::check_replaced,
    schema::{self, location_of},
};
use crate::rules::{CountedBy, Limit, Unit};

/// The strategy without a name in a document.
pub(super) const DEFAULT: &str = "gcra";

/// The text of the strategy that `calendar: true` stands for.
pub(super) const CALENDAR: &str = "calendar_window utc";

/// The most limits of a rule.
const MAX_LIMITS: usize = 16;

/// The limits of a rule.
pub(super) fn limits(
    list: &[Spanned<schema::Limit>],
    path: &PolicyPath,
    report: &mut Report,
) -> Vec<Limit> {
    if let Some(first) = list.get(MAX_LIMITS) {
        let message = format!("too many limits of a rule; expected at most {MAX_LIMITS}");
        report.add(first.defined, message);
    }
    let mut limits: Vec<Limit> = Vec::new();
    for (index, written) in list.iter().take(MAX_LIMITS).enumerate() {
        let name = report.text("name", written.value.name.as_ref());
        let name = name.filter(|name| !name.is_empty());
        let path = match (index, name) {
            (0, _) => path.clone(),
            (_, Some(name)) => path.limit(name),
            (_, None) => {
                let message = "a limit without a name that is not the first of its rule; expected a name, under which it is counted";
                report.add(written.defined, message);
                continue;
            }
        };
        if name.is_some() && limits.iter().any(|limit| limit.name.as_deref() == name) {
            let message = "a name that another limit of the rule has; expected each name once";
            let location = location_of(written.value.name.as_ref());
            report.add(location.unwrap_or(written.defined), message);
        }
        limits.extend(limit(written, name, &path, report));
    }
    limits
}

fn limit(
    written: &Spanned<schema::Limit>,
    name: Option<&str>,
    path: &PolicyPath,
    report: &mut Report,
) -> Option<Limit> {
    let replaces = written.value.replaces.iter().flatten();
    let replaces = replaces.filter_map(|replaced| {
        let text = report.text("replaces", Some(replaced))?;
        check_replaced(text, name, replaced.defined, report)
    });
    let replaces = replaces.collect();
    let counted = if written.value.unlimited == Some(true) {
        let limit = &written.value;
        let rejected = [
            ("quota", location_of(limit.quota.as_ref())),
            ("strategy", location_of(limit.strategy.as_ref())),
            ("calendar", location_of(limit.calendar.as_ref())),
            ("on_reject", location_of(limit.on_reject.as_ref())),
            ("independent", location_of(limit.independent.as_ref())),
        ];
        reject_keys(&rejected, "an unlimited limit", report);
        None
    } else {
        Some(counted(written, path, report)?)
    };
    Some(Limit {
        name: name.map(str::to_owned),
        replaces,
        counted,
    })
}

fn counted(
    written: &Spanned<schema::Limit>,
    path: &PolicyPath,
    report: &mut Report,
) -> Option<CountedBy> {
    let limit = &written.value;
    let charges_rejected = match &limit.on_reject {
        None => false,
        Some(on_reject) => match &*on_reject.value {
            "free" => false,
            "charge" => true,
            _ => {
                report.wrong("on_reject", on_reject, "charge or free");
                return None;
            }
        },
    };
    let Some(text) = &limit.quota else {
        let message =
            "a limit without a quota; expected a quota such as 100/min, or unlimited: true";
        report.add(written.defined, message);
        return None;
    };
    let quota = quota(text, report)?;
    let unit = Unit::of_period(quota.period());
    let mut policy = Policy::new(path.policy_name(), quota).by_hand();
    if charges_rejected {
        policy = policy.charge_rejected(true);
    }
    if quota.amount() > 0 {
        policy = strategy(limit, policy, text, report)?;
    } else {
        let rejected = [
            ("strategy", location_of(limit.strategy.as_ref())),
            ("calendar", location_of(limit.calendar.as_ref())),
        ];
        reject_keys(&rejected, "a quota of 0", report);
        if unit.is_none() || quota.capacity() > 0 {
            let expected = "a quota of 0 per second, minute, hour, day, week, month or year";
            report.wrong("quota", text, expected);
        }
        // That of the reference format: it counts nothing.
        policy = policy.strategy(CalendarWindow::from_epoch());
    }
    Some(CountedBy {
        requests_per_unit: quota.amount(),
        unit,
        policy,
        independent: limit.independent.as_ref().is_some_and(|flag| flag.value),
    })
}

fn quota(text: &Spanned<String>, report: &mut Report) -> Option<Quota> {
    match text.value.parse::<Quota>() {
        Ok(quota) if quota.is_concurrent() => {
            let expected = "a rate: the protocol does not say when a request ends";
            report.wrong("quota", text, expected);
            None
        }
        Ok(quota) => Some(quota),
        Err(_) => {
            let expected = "a quota such as 100/min, 10/s burst 20 or 5000/month";
            report.wrong("quota", text, expected);
            None
        }
    }
}

/// The policy under the strategy that the limit sets.
fn strategy(
    limit: &schema::Limit,
    policy: Policy,
    quota: &Spanned<String>,
    report: &mut Report,
) -> Option<Policy> {
    let calendar = limit.calendar.as_ref().filter(|calendar| calendar.value);
    if let Some(calendar) = calendar {
        if limit.strategy.is_some() {
            let message = format!(
                "calendar together with strategy; expected one of them: calendar: true is the strategy {CALENDAR}"
            );
            report.add(calendar.defined, message);
            return None;
        }
        if Unit::of_period(policy.quota().period()).is_none() {
            let expected = "a period of one second, minute, hour, day, week, month or year under calendar: true";
            report.wrong("quota", quota, expected);
            return None;
        }
    }
    let (text, location) = match &limit.strategy {
        Some(strategy) => (&*strategy.value, strategy.defined),
        None if calendar.is_some() => (CALENDAR, quota.defined),
        None => (DEFAULT, quota.defined),
    };
    // A request to the service has no end to wait for, and none is banned.
    if let Some("concurrency" | "ban") = text.split_whitespace().next() {
        let found = quoted(text);
        let message = format!("strategy: {found}; expected one of a rate, such as gcra");
        report.add(location, message);
        return None;
    }
    let policy = policy.strategy_text(text).map_err(|error| {
        let (found, expected) = (error.value(), error.expected());
        report.add(location, format!("strategy: {found}; expected {expected}"));
    });
    let policy = policy.ok()?;
    match Limiter::builder().policy(policy.clone()).build() {
        Ok(_) => Some(policy),
        Err(problem) => {
            let message = format!("quota under {}: {problem}", quoted(text));
            report.add(quota.defined, message);
            None
        }
    }
}

/// Reports keys that have no meaning for a limit.
fn reject_keys(keys: &[(&str, Option<Location>)], limit: &str, report: &mut Report) {
    for (key, location) in keys {
        if let Some(location) = location {
            report.add(*location, format!("{key} of {limit}; expected no {key}"));
        }
    }
}
