//! Limits from configuration files.
//!
//! A [`Document`] is loaded from a file and builds a [`Limiter`](crate::Limiter) or a
//! [`RateLimitLayer`](crate::RateLimitLayer), with the code that it names in a [`Registry`]. A [`LoadError`] has all of its
//! [mistakes](Mistake). A [`Watch`] puts each change of the file in force while requests are served.
//!
#![doc = include_str!("../../docs/configuration.md")]

mod build;
mod content;
mod document;
mod error;
mod format;
mod names;
mod registry;
mod text;
mod tree;
mod watch;

pub use crate::{
    access::section::{AddressesSection, FileSection, KeyText, KeysSection, ListSection},
    error::reference::Reference,
    extract::section::{BearerSection, ClientIpSection},
    secret::Secret,
    store::section::{
        BreakerSection, RejectionCacheSection, RejectionCacheSettings, SentinelSection,
        StoreSection, TlsSection,
    },
};
pub use document::Document;
pub use error::{LoadError, Mistake, Position};
pub use format::Format;
pub use registry::Registry;
pub use watch::{Watch, WatchError, WatchStatus, WatchTarget, Watcher};
