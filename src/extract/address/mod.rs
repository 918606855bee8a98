//! Extractors of the client's address: that of the socket's peer, or the one that trusted proxies report.

pub(crate) mod client;
pub(crate) mod forwarded;
pub(crate) mod networks;
pub(crate) mod peer;
