//! Limits in the format of the reference server.

use tollgate::{CalendarWindow, Policy};

use super::{
    fields::{Fields, text_of, wrong},
    mistake::{Report, quoted},
    name::PolicyPath,
    yaml::{Node, Plain, Value},
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

/// The limit of a rule, if it has one.
pub(super) fn limit(fields: &Fields<'_>, path: &PolicyPath, report: &mut Report) -> Option<Limit> {
    let entry = fields.entry("rate_limit")?;
    let known = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
    let fields = Fields::of(&entry.node, "a limit", &known, report)?;
    let name = fields.text("name", report).filter(|name| !name.is_empty());
    let replaces = fields.list("replaces", report).iter();
    let replaces = replaces.filter_map(|node| replaced(node, name, report));
    let replaces = replaces.collect();
    let name = name.map(str::to_owned);
    let requests_per_unit = requests_per_unit(&fields, report);
    if fields.bool("unlimited", report) {
        if fields.entry("unit").is_some() {
            let message = "a unit of an unlimited limit; expected no unit";
            report.add(fields.position_of("unit"), message);
        }
        return Some(Limit {
            name,
            replaces,
            counted: None,
        });
    }
    let text = fields.text("unit", report).unwrap_or_default();
    let mut units = Unit::ALL.into_iter();
    let Some(unit) = units.find(|unit| unit.name().eq_ignore_ascii_case(text)) else {
        let found = quoted(text);
        let expected = Unit::ALL.map(Unit::name).join(", ").to_ascii_lowercase();
        let message = format!("invalid unit {found}; expected one of {expected}");
        report.add(fields.position_of("unit"), message);
        return None;
    };
    let counted = reference_limit(path, requests_per_unit, unit);
    Some(Limit {
        name,
        replaces,
        counted: Some(counted),
    })
}

/// The number of a limit; 0 if there is none, as theirs.
fn requests_per_unit(fields: &Fields<'_>, report: &mut Report) -> u32 {
    let Some(entry) = fields.entry("requests_per_unit") else {
        return 0;
    };
    if let Value::Scalar(scalar) = &entry.node.value
        && let Some(Plain::Unsigned(number)) = scalar.plain()
        && let Ok(number) = u32::try_from(number)
    {
        return number;
    }
    let expected = format!("a number from 0 to {}", u32::MAX);
    wrong("requests_per_unit", &entry.node, &expected, report);
    0
}

/// The name in an element of `replaces`.
fn replaced(node: &Node, own: Option<&str>, report: &mut Report) -> Option<String> {
    let fields = Fields::of(node, "the name of the replaced limit", &["name"], report)?;
    let name = fields.entry("name");
    let name = name.and_then(|entry| text_of(&entry.node, "name", report));
    check_replaced(name.unwrap_or_default(), own, node, report)
}

/// The name of a limit that one named `own` replaces, if it can be.
pub(super) fn check_replaced(
    name: &str,
    own: Option<&str>,
    node: &Node,
    report: &mut Report,
) -> Option<String> {
    let message = if name.is_empty() {
        "an empty name in replaces; expected the name of a limit"
    } else if own == Some(name) {
        "a limit that replaces itself; expected the name of another limit"
    } else {
        return Some(name.to_owned());
    };
    report.add(Some(node.position), message);
    None
}
