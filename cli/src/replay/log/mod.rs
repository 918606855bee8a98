//! Access logs: their lines, and what a line says about a request.

mod combined;
mod fields;
mod json;
mod lines;
mod time;

use std::net::{IpAddr, SocketAddr};

pub(super) use self::{fields::FieldOption, lines::Lines};

/// What a line says about a request.
#[derive(Debug)]
pub(super) struct Record {
    /// When the request arrived, in microseconds since the Unix epoch.
    pub(super) arrived_us: i64,
    /// How long it took in microseconds; 0 if the line does not say it.
    pub(super) duration_us: i64,
    pub(super) method: String,
    /// The path with its query, or any other form of a request's target.
    pub(super) target: String,
    pub(super) host: Option<String>,
    pub(super) peer: Option<IpAddr>,
    /// The response's status; 0 if there was no response.
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
}

/// Why a line has no request that can be replayed.
pub(super) type Unreadable = &'static str;

/// Reads a line: of JSON if it begins with a brace, or else in the common or combined format.
pub(super) fn parse(line: &str, options: &[FieldOption]) -> Result<Record, Unreadable> {
    // A log that another program has converted may begin with a byte order mark.
    let line = line.strip_prefix('\u{feff}').unwrap_or(line).trim();
    if line.starts_with('{') {
        json::parse(line, options)
    } else {
        combined::parse(line)
    }
}

/// The method and the target of a request line, such as `GET / HTTP/1.1`.
fn request_line(text: &str) -> Option<(&str, &str)> {
    let (method, rest) = text.split_once(' ')?;
    let target = match rest.rsplit_once(' ') {
        Some((target, version)) if version.starts_with("HTTP/") => target,
        _ => rest,
    };
    (!target.is_empty()).then_some((method, target))
}

/// An address, which a port may follow.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse().ok();
    address.or_else(|| text.parse().map(|socket: SocketAddr| socket.ip()).ok())
}

fn status(text: &str) -> Option<u16> {
    text.parse().ok().filter(|status| *status < 1000)
}

#[cfg(test)]
mod tests;
