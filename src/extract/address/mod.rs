//! The client's address: of the socket's peer, or as trusted proxies report it.

pub(crate) mod client;
pub(crate) mod forwarded;
pub(crate) mod networks;
pub(crate) mod peer;
