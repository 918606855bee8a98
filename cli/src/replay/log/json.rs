//! JSON logs: an object in each line.

use std::{borrow::Cow, net::IpAddr};

use serde_json::{Map, Value};

use super::{
    fields::{DurationUnit, FieldNames, Role},
    instant,
    record::{LoggedTime, Record, Unreadable, address, request_line},
};

/// Reads an object with fields of these names, or of a path of names with dots between them.
pub(super) fn parse<'a>(line: &str, names: &FieldNames) -> Result<Record<'a>, Unreadable> {
    let value: Value = serde_json::from_str(line).map_err(|_| "no valid JSON")?;
    let Value::Object(object) = &value else {
        return Err("no object");
    };
    let found = |role| {
        let mut names = names.of(role).iter();
        names.find_map(|name| find(object, name).map(|value| (&**name, value)))
    };
    let text = |role| found(role).and_then(|(_, value)| value.as_str());
    let time = found(Role::Time).and_then(|(name, value)| time(name, value));
    let (method, target) = match (text(Role::Method), text(Role::Uri)) {
        (Some(method), Some(target)) => (method, target),
        // nginx's `$request`.
        _ => {
            let line = object.get("request").and_then(Value::as_str);
            line.and_then(request_line).ok_or("no method and URI")?
        }
    };
    let status = found(Role::Status).and_then(|(_, value)| status(value));
    let duration_us = found(Role::Duration).and_then(|(name, value)| {
        let unit = names.duration_unit;
        duration_us(value, unit.unwrap_or_else(|| DurationUnit::of_name(name)))
    });
    Ok(Record {
        time: time.ok_or("no time")?,
        method: owned(method),
        target: owned(target),
        host: text(Role::Host).filter(|host| *host != "-").map(owned),
        peer: peer(object, names),
        status: status.ok_or("no status")?,
        duration_us,
        headers: headers(object, names),
    })
}

fn owned<'a>(text: &str) -> Cow<'a, str> {
    Cow::Owned(text.to_owned())
}

/// The field of that name, or at that path.
fn find<'v>(object: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    object.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        find(object.get(outer)?.as_object()?, inner)
    })
}

fn time(name: &str, value: &Value) -> Option<LoggedTime> {
    let (micros, is_whole_second) = match value {
        Value::Number(number) => {
            let number = number.as_f64()?;
            let is_whole = number.fract() == 0.0 && number < 1e11;
            (instant::of_number(number)?, is_whole)
        }
        Value::String(text) => instant::of_text(text)?,
        _ => return None,
    };
    Some(LoggedTime {
        micros,
        is_whole_second,
        is_arrival: name.to_ascii_lowercase().starts_with("start"),
    })
}

fn peer(object: &Map<String, Value>, names: &FieldNames) -> Option<IpAddr> {
    let mut names = names.of(Role::Peer).iter();
    names.find_map(|name| address(find(object, name)?.as_str()?))
}

fn status(value: &Value) -> Option<u16> {
    let number = match value {
        Value::Number(number) => number.as_u64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    u16::try_from(number).ok().filter(|status| *status < 1000)
}

fn duration_us(value: &Value, unit: DurationUnit) -> Option<i64> {
    match value {
        Value::Number(number) => instant::scaled(number.as_f64()?, unit.micros()),
        Value::String(text) => match text.parse() {
            Ok(number) => instant::scaled(number, unit.micros()),
            Err(_) => instant::duration_us(text),
        },
        _ => None,
    }
}

/// The request's headers: those of an object, nginx's `http_user_agent`, Traefik's `request_User-Agent`, and those that are
/// named on the command line.
fn headers<'a>(
    object: &Map<String, Value>,
    names: &FieldNames,
) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
    let mut headers = Vec::new();
    let mut add = |name: &str, value: &Value| {
        let values = match value {
            Value::Array(values) => &values[..],
            value => std::slice::from_ref(value),
        };
        for value in values.iter().filter_map(Value::as_str) {
            if value != "-" && !value.is_empty() {
                headers.push((owned(name), owned(value)));
            }
        }
    };
    for (name, value) in object {
        if let Some(name) = name.strip_prefix("http_") {
            if name != "host" {
                add(&name.replace('_', "-"), value);
            }
        } else if let Some(name) = name.strip_prefix("request_") {
            if name.starts_with(|first: char| first.is_ascii_uppercase()) {
                add(name, value);
            }
        } else if matches!(&**name, "user_agent" | "referer") {
            add(&name.replace('_', "-"), value);
        }
    }
    let mut object_names = names.of(Role::Headers).iter();
    let fields = object_names.find_map(|name| find(object, name)?.as_object());
    for (name, value) in fields.into_iter().flatten() {
        add(name, value);
    }
    for (header, name) in &names.headers {
        if let Some(value) = find(object, name) {
            add(header, value);
        }
    }
    headers
}
