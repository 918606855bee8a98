//! From a line of a log to a request.

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use http::{
    HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header::HOST, uri::Authority,
};
use tollgate::extract::PeerAddr;

use super::log::{LoggedTime, Record, Unreadable};

/// A request that is to be replayed.
#[derive(Debug)]
pub(super) struct Entry {
    /// When it arrived, in microseconds since the Unix epoch.
    pub(super) at: i64,
    /// With the response's status; `None` if there was no response.
    pub(super) request: Request<Option<StatusCode>>,
    /// How long it took, in microseconds.
    pub(super) duration_us: Option<i64>,
    pub(super) peer: Option<IpAddr>,
    /// The time of its line, from which it arrived at `at`.
    pub(super) logged: LoggedTime,
    pub(super) place: Place,
}

/// Where a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The index of the log.
    pub(super) log: usize,
    /// The number of the line, from 1 on.
    pub(super) line: u64,
}

/// The status by which nginx logs that the client has closed the connection.
const CLIENT_CLOSED: u16 = 499;

/// Which instant of a request its log shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LoggedAt {
    /// When it arrived.
    Arrival,
    /// When its response was sent.
    End,
}

impl Entry {
    /// The request of a line.
    pub(super) fn new(
        record: Record<'_>,
        logged_at: Option<LoggedAt>,
        place: Place,
    ) -> Result<Self, Unreadable> {
        let method = Method::from_bytes(record.method.as_bytes()).map_err(|_| "no HTTP method")?;
        let mut request = Request::new(match record.status {
            0 | CLIENT_CLOSED => None,
            status => Some(StatusCode::from_u16(status).map_err(|_| "no status")?),
        });
        *request.uri_mut() = uri(&method, &record.target).ok_or("no URI")?;
        *request.method_mut() = method;
        if let Some(peer) = record.peer {
            // A log has no port.
            let address = PeerAddr(SocketAddr::new(peer, 0));
            request.extensions_mut().insert(address);
        }
        let headers = request.headers_mut();
        for (name, value) in &record.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                headers.append(name, value);
            }
        }
        if let Some(host) = &record.host
            && let Ok(host) = HeaderValue::from_str(host)
        {
            headers.insert(HOST, host);
        }
        // The response to a gRPC call is another one, but its limits are the same.
        headers.remove(http::header::CONTENT_TYPE);
        let is_arrival = match logged_at {
            Some(logged_at) => logged_at == LoggedAt::Arrival,
            None => record.time.is_arrival,
        };
        let before = match is_arrival {
            true => 0,
            false => record.duration_us.unwrap_or(0),
        };
        Ok(Self {
            at: (record.time.micros - before).max(0),
            request,
            duration_us: record.duration_us,
            peer: record.peer,
            logged: record.time,
            place,
        })
    }
}

/// The target of a request. Characters that no URI has, but that servers accept, are encoded.
fn uri(method: &Method, target: &str) -> Option<Uri> {
    if method == Method::CONNECT {
        let authority: Authority = target.parse().ok()?;
        return Uri::builder().authority(authority).build().ok();
    }
    if let Ok(uri) = target.parse::<Uri>() {
        return Some(uri);
    }
    let mut encoded = String::with_capacity(target.len() + 8);
    for byte in target.bytes() {
        match byte {
            b'!'..=b'~'
                if !matches!(
                    byte,
                    b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
                ) =>
            {
                encoded.push(char::from(byte));
            }
            // Writing to a string can't fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded.parse().ok()
}
