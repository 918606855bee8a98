//! The names of the fields of JSON logs.

use clap::ValueEnum;

/// What a field of a JSON log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::replay) enum Role {
    Time,
    Peer,
    Method,
    Uri,
    Host,
    Status,
    Duration,
    Headers,
}

/// All of them, in their order.
const ROLES: [Role; 8] = [
    Role::Time,
    Role::Peer,
    Role::Method,
    Role::Uri,
    Role::Host,
    Role::Status,
    Role::Duration,
    Role::Headers,
];

/// A field that is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::replay) enum FieldOption {
    /// What the field is, and its name.
    Role(Role, String),
    /// The name of a request's header, and that of the field.
    Header(String, String),
}

/// The unit of durations that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::replay) enum DurationUnit {
    S,
    Ms,
    Us,
    Ns,
}

impl DurationUnit {
    pub(super) fn micros(self) -> f64 {
        match self {
            Self::S => 1e6,
            Self::Ms => 1e3,
            Self::Us => 1.0,
            Self::Ns => 1e-3,
        }
    }

    /// The unit that a field's name says: Traefik's `Duration` has nanoseconds, others seconds unless the name ends otherwise.
    pub(super) fn of_name(name: &str) -> Self {
        let ends = |end: &str| name.ends_with(end);
        match name {
            "Duration" => Self::Ns,
            _ if ends("_ms") || ends("Ms") => Self::Ms,
            _ if ends("_us") => Self::Us,
            _ if ends("_ns") => Self::Ns,
            _ => Self::S,
        }
    }
}

/// The names by which fields are found, the first that a line has.
#[derive(Clone, Debug)]
pub(in crate::replay) struct FieldNames {
    /// By role.
    roles: [Vec<String>; ROLES.len()],
    /// Names of headers, and of the fields that have them.
    pub(super) headers: Vec<(String, String)>,
    pub(super) duration_unit: Option<DurationUnit>,
}

impl FieldNames {
    /// The names of nginx, Caddy and Traefik, and those of the command line in place of them.
    pub(in crate::replay) fn new(
        options: &[FieldOption],
        duration_unit: Option<DurationUnit>,
    ) -> Self {
        let mut names = Self {
            roles: ROLES.map(|role| role.defaults().iter().map(|name| (*name).into()).collect()),
            headers: Vec::new(),
            duration_unit,
        };
        for option in options {
            match option {
                FieldOption::Role(role, name) => names.roles[*role as usize] = vec![name.clone()],
                FieldOption::Header(header, name) => {
                    names.headers.push((header.clone(), name.clone()));
                }
            }
        }
        names
    }

    pub(super) fn of(&self, role: Role) -> &[String] {
        &self.roles[role as usize]
    }
}

impl Role {
    fn defaults(self) -> &'static [&'static str] {
        match self {
            Self::Time => &[
                "StartUTC",
                "start_time",
                "ts",
                "time",
                "timestamp",
                "@timestamp",
                "time_iso8601",
                "time_local",
                "msec",
            ],
            Self::Peer => &[
                "request.remote_ip",
                "remote_addr",
                "remote_ip",
                "ClientHost",
                "client_ip",
                "client",
                "peer",
                "ip",
            ],
            Self::Method => &[
                "request.method",
                "request_method",
                "RequestMethod",
                "method",
            ],
            Self::Uri => &[
                "request.uri",
                "request_uri",
                "RequestPath",
                "uri",
                "path",
                "url",
            ],
            Self::Host => &[
                "request.host",
                "http_host",
                "RequestHost",
                "host",
                "server_name",
            ],
            Self::Status => &["status", "DownstreamStatus", "status_code", "response_code"],
            Self::Duration => &[
                "request_time",
                "Duration",
                "duration",
                "duration_s",
                "duration_ms",
                "duration_us",
                "duration_ns",
            ],
            Self::Headers => &["request.headers", "headers", "request_headers"],
        }
    }
}

impl std::str::FromStr for FieldOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (what, name) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not WHAT=FIELD, such as time=ts"))?;
        if let Some(header) = what.strip_prefix("header:") {
            let header: http::HeaderName = header
                .parse()
                .map_err(|_| format!("{header:?} is not the name of a header"))?;
            return Ok(Self::Header(header.as_str().to_owned(), name.to_owned()));
        }
        let role = Role::from_str(what, false).map_err(|_| {
            format!(
                "{what:?} is none of time, peer, method, uri, host, status, duration, headers and header:NAME"
            )
        })?;
        Ok(Self::Role(role, name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::ROLES;

    #[test]
    fn the_guide_lists_the_names_of_each_field_in_their_order() {
        let guide = include_str!("../../../../docs/replay.md");
        for role in ROLES {
            let names = role.defaults().join("`, `");
            let row = format!("| `{}` | `{names}`", format!("{role:?}").to_lowercase());
            let has_row = guide.lines().any(|line| line.starts_with(&row));
            assert!(has_row, "{row}");
        }
        assert!(
            ROLES
                .iter()
                .enumerate()
                .all(|(index, role)| *role as usize == index)
        );
    }
}
