//! What a line of any format says about a request.

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

/// What a line says about a request.
#[derive(Debug)]
pub(in crate::replay) struct Record<'a> {
    pub(in crate::replay) time: LoggedTime,
    pub(in crate::replay) method: Cow<'a, str>,
    /// The path with its query, or any other form of a request's target.
    pub(in crate::replay) target: Cow<'a, str>,
    pub(in crate::replay) host: Option<Cow<'a, str>>,
    pub(in crate::replay) peer: Option<IpAddr>,
    /// The response's status; 0 if there was no response.
    pub(in crate::replay) status: u16,
    /// How long the request took, in microseconds.
    pub(in crate::replay) duration_us: Option<i64>,
    pub(in crate::replay) headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// The time of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::replay) struct LoggedTime {
    /// Microseconds since the Unix epoch.
    pub(in crate::replay) micros: i64,
    /// Whether the log shows no fractions of a second.
    pub(in crate::replay) is_whole_second: bool,
    /// Whether it is known to be when the request arrived.
    pub(in crate::replay) is_arrival: bool,
}

/// Why a line has no request that can be replayed.
pub(in crate::replay) type Unreadable = &'static str;

/// The method and the target of a request line, such as `GET / HTTP/1.1`.
pub(super) fn request_line(text: &str) -> Option<(&str, &str)> {
    let (method, rest) = text.split_once(' ')?;
    let target = match rest.rsplit_once(' ') {
        Some((target, version)) if version.starts_with("HTTP/") => target,
        _ => rest,
    };
    (!target.is_empty()).then_some((method, target))
}

/// An address, which a port may follow.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse().ok();
    address.or_else(|| {
        let socket: SocketAddr = text.parse().ok()?;
        Some(socket.ip())
    })
}
