//! From a line of a log to a request.

use std::{fmt::Write, net::SocketAddr};

use http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::Authority};
use tollgate::extract::PeerAddr;

use super::log::{Record, Unreadable};

/// A request with the status of its response; `None` if there was no response.
pub(super) type Request = http::Request<Option<StatusCode>>;

/// A request that is to be replayed. Times are in microseconds since the Unix epoch.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) arrived_us: i64,
    pub(super) duration_us: i64,
    pub(super) request: Request,
}

/// The status by which nginx logs that the client has closed the connection.
const CLIENT_CLOSED: u16 = 499;

impl Entry {
    /// The request of a line.
    pub(super) fn new(record: Record) -> Result<Self, Unreadable> {
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
            headers.insert(header::HOST, host);
        }
        // The response to a gRPC call is another one, but its limits are the same.
        headers.remove(header::CONTENT_TYPE);
        Ok(Self {
            arrived_us: record.arrived_us.max(0),
            duration_us: record.duration_us,
            request,
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
        if byte.is_ascii_graphic() && !br#""<>\^`{|}"#.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded.parse().ok()
}
