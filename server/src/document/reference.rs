//! Limits in the format of the reference server.

use serde_saphyr::{Location, Spanned};
use tollgate::{CalendarWindow, Policy};

use super::{
    mistake::{Report, quoted},
    name::PolicyPath,
    schema::{RateLimit, location_of},
};
use crate::rules::{CountedBy, Limit, Unit};

/// A limit as the reference server counts it: in windows that follow each other from 1970 on, beside the request's other descriptors;
/// rejected requests are charged too.
fn reference_limit(path: &PolicyPath, requests_per_unit: u32, unit: Unit) -> CountedBy {
    let requests = u64::from(requests_per_unit);
    CountedBy {
        requests_per_unit: requests,
        unit: Some(unit),
        policy: Policy::new(path.policy_name(), unit.quota(requests))
            .strategy(CalendarWindow::from_epoch())
            .charge_rejected(true)
            .by_hand(),
        independent: true,
    }
}

/// The limit of a rule, unless it has mistakes.
pub(super) fn limit(
    limit: &Spanned<RateLimit>,
    path: &PolicyPath,
    report: &mut Report,
) -> Option<Limit> {
    let RateLimit {
        unit,
        requests_per_unit,
        unlimited,
        name,
        replaces,
    } = &limit.value;
    let name = report.text("name", name.as_ref());
    let name = name.filter(|name| !name.is_empty());
    let replaces = replaces.iter().flatten().filter_map(|replaced| {
        let text = report.text("name", replaced.value.name.as_ref());
        check_replaced(text.unwrap_or_default(), name, replaced.defined, report)
    });
    let replaces = replaces.collect();
    let counted = if *unlimited == Some(true) {
        if let Some(unit) = unit {
            let message = "a unit of an unlimited limit; expected no unit";
            report.add(unit.defined, message);
        }
        None
    } else {
        let location = location_of(unit.as_ref()).unwrap_or(limit.defined);
        let unit = unit_of(
            unit.as_ref().map_or("", |unit| &unit.value),
            location,
            report,
        )?;
        Some(reference_limit(
            path,
            requests_per_unit.unwrap_or_default(),
            unit,
        ))
    };
    Some(Limit {
        name: name.map(str::to_owned),
        replaces,
        counted,
    })
}

/// The unit of this name.
fn unit_of(text: &str, location: Location, report: &mut Report) -> Option<Unit> {
    let mut units = Unit::ALL.into_iter();
    let unit = units.find(|unit| unit.name().eq_ignore_ascii_case(text));
    if unit.is_none() {
        let found = quoted(text);
        let expected = Unit::ALL.map(Unit::name).join(", ").to_ascii_lowercase();
        let message = format!("invalid unit {found}; expected one of {expected}");
        report.add(location, message);
    }
    unit
}

/// The name of a limit that one named `own` replaces, if it can be.
pub(super) fn check_replaced(
    name: &str,
    own: Option<&str>,
    location: Location,
    report: &mut Report,
) -> Option<String> {
    let message = if name.is_empty() {
        "an empty name in replaces; expected the name of a limit"
    } else if own == Some(name) {
        "a limit that replaces itself; expected the name of another limit"
    } else {
        return Some(name.to_owned());
    };
    report.add(location, message);
    None
}
