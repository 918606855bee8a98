//! JSON logs: an object in each line.

use serde_json::{Map, Value};

use super::{
    FieldOption, Record, Unreadable, address,
    fields::{at_path, find},
    request_line, status, time,
};

pub(super) fn parse(line: &str, options: &[FieldOption]) -> Result<Record, Unreadable> {
    let object: Map<String, Value> =
        serde_json::from_str(line).map_err(|_| "no object of valid JSON")?;
    let text = |what| {
        find(&object, options, &[what], |_, value| {
            value.as_str().map(str::to_owned)
        })
    };
    let (is_arrival, logged_us) = find(&object, options, &["start", "time"], |what, value| {
        Some((what == "start", time::instant(value)?))
    })
    .ok_or("no time")?;
    let durations = ["duration", "duration_ms", "duration_us", "duration_ns"];
    let duration_us = find(&object, options, &durations, |what, value| {
        let unit_us = match what {
            "duration_ms" => 1e3,
            "duration_us" => 1.0,
            "duration_ns" => 1e-3,
            _ => 1e6,
        };
        time::duration_us(value, unit_us)
    })
    .unwrap_or(0);
    let (method, target) = match (text("method"), text("uri")) {
        (Some(method), Some(target)) => (method, target),
        // nginx's `$request`.
        _ => {
            let line = object.get("request").and_then(Value::as_str);
            let (method, target) = line.and_then(request_line).ok_or("no method and URI")?;
            (method.to_owned(), target.to_owned())
        }
    };
    Ok(Record {
        // Servers write a line when the response was sent.
        arrived_us: if is_arrival {
            logged_us
        } else {
            logged_us - duration_us
        },
        duration_us,
        method,
        target,
        host: text("host").filter(|host| host != "-"),
        peer: find(&object, options, &["peer"], |_, value| {
            address(value.as_str()?)
        }),
        status: find(&object, options, &["status"], |_, value| match value {
            Value::String(text) => status(text),
            number => status(&number.to_string()),
        })
        .ok_or("no status")?,
        headers: headers(&object, options),
    })
}

/// The request's headers: those of an object, nginx's `http_user_agent`, Traefik's `request_User-Agent`, and those that are
/// named on the command line.
fn headers(object: &Map<String, Value>, options: &[FieldOption]) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    let mut add = |name: &str, value: &Value| {
        let values = match value {
            Value::Array(values) => &values[..],
            value => std::slice::from_ref(value),
        };
        for value in values.iter().filter_map(Value::as_str) {
            if value != "-" && !value.is_empty() {
                headers.push((name.to_owned(), value.to_owned()));
            }
        }
    };
    for (name, value) in object {
        if let Some(name) = name.strip_prefix("http_") {
            add(&name.replace('_', "-"), value);
        } else if let Some(name) = name.strip_prefix("request_")
            && name.starts_with(|first: char| first.is_ascii_uppercase())
        {
            add(name, value);
        }
    }
    let fields = find(object, options, &["headers"], |_, value| {
        value.as_object().cloned()
    });
    for (name, value) in fields.iter().flatten() {
        add(name, value);
    }
    for FieldOption { what, name } in options {
        if let Some(header) = what.strip_prefix("header:")
            && let Some(value) = at_path(object, name)
        {
            add(header, value);
        }
    }
    headers
}
