//! The names of the fields of JSON logs.

use std::str::FromStr;

use serde_json::{Map, Value};

/// What fields say, and the names that they have in the logs of nginx, Caddy, Traefik and others.
const DEFAULT_NAMES: [(&str, &[&str]); 12] = [
    ("start", &["StartUTC", "start_time"]),
    (
        "time",
        &[
            "ts",
            "time",
            "timestamp",
            "@timestamp",
            "time_iso8601",
            "time_local",
            "msec",
        ],
    ),
    ("duration", &["request_time", "duration", "duration_s"]),
    ("duration_ms", &["duration_ms"]),
    ("duration_us", &["duration_us"]),
    ("duration_ns", &["Duration", "duration_ns"]),
    (
        "peer",
        &[
            "request.remote_ip",
            "remote_addr",
            "remote_ip",
            "ClientHost",
            "client_ip",
            "client",
            "peer",
            "ip",
        ],
    ),
    (
        "method",
        &[
            "request.method",
            "request_method",
            "RequestMethod",
            "method",
        ],
    ),
    (
        "uri",
        &[
            "request.uri",
            "request_uri",
            "RequestPath",
            "uri",
            "path",
            "url",
        ],
    ),
    (
        "host",
        &[
            "request.host",
            "http_host",
            "RequestHost",
            "host",
            "server_name",
        ],
    ),
    (
        "status",
        &["status", "DownstreamStatus", "status_code", "response_code"],
    ),
    (
        "headers",
        &["request.headers", "headers", "request_headers"],
    ),
];

/// A field that is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::replay) struct FieldOption {
    /// One of [`DEFAULT_NAMES`], or `header:` and the name of a header.
    pub(super) what: String,
    pub(super) name: String,
}

/// The first field that says one of these and that `read` can read: those of the command line are looked at first.
pub(super) fn find<T>(
    object: &Map<String, Value>,
    options: &[FieldOption],
    whats: &[&str],
    read: impl Fn(&str, &Value) -> Option<T>,
) -> Option<T> {
    let named = options.iter().map(|option| (&*option.what, &*option.name));
    let defaults = DEFAULT_NAMES
        .iter()
        .flat_map(|(what, names)| names.iter().map(|name| (*what, *name)));
    named
        .chain(defaults)
        .filter(|(what, _)| whats.contains(what))
        .find_map(|(what, name)| read(what, at_path(object, name)?))
}

/// The field of that name, or at that path of names with dots between them.
pub(super) fn at_path<'v>(object: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    object.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        at_path(object.get(outer)?.as_object()?, inner)
    })
}

impl FromStr for FieldOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, name) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not WHAT=FIELD, such as time=ts"))?;
        let is_known = match what.strip_prefix("header:") {
            Some(header) => http::HeaderName::from_str(header).is_ok(),
            None => DEFAULT_NAMES.iter().any(|(known, _)| *known == what),
        };
        if !is_known {
            let known = DEFAULT_NAMES.map(|(known, _)| known).join(", ");
            return Err(format!("{what:?} is none of {known} and header:NAME"));
        }
        Ok(Self {
            what: what.to_owned(),
            name: name.to_owned(),
        })
    }
}

#[test]
fn the_guide_lists_the_names_of_each_field_in_their_order() {
    let guide = include_str!("../../../../docs/replay.md");
    for (what, names) in DEFAULT_NAMES {
        let row = format!("| `{what}` | `{}`", names.join("`, `"));
        let has_row = guide.lines().any(|line| line.starts_with(&row));
        assert!(has_row, "{row}");
    }
}
