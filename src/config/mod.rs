//! Limits from configuration files.
//!
//! A [`Document`] is loaded from a file and builds a [`Limiter`](crate::Limiter) or a
//! [`RateLimitLayer`](crate::RateLimitLayer), with the code that it names in a [`Registry`]. A [`LoadError`] has its
//! [mistakes](Mistake). A [`Watch`] puts each change of the file in force while requests are served.
//!
#![doc = include_str!("../../docs/configuration.md")]

mod build;
mod content;
mod document;
mod error;
mod format;
mod forms;
mod names;
mod parse;
mod path;
mod registry;
mod secret;
mod text;
mod watch;

pub use crate::error::reference::Reference;
pub use document::{
    Document,
    access::{
        AddressesSection, FileSection, KeyText, KeysSection, ListSection, OnUnknownAddressSection,
    },
    keys::{BearerSection, ClientIpSection},
    policy::{
        ChargeSection, ConditionsSection, CostRuleSection, CostSection, KeySection, LeaseSection,
        LocalFallbackSection, MissingKeySection, OnMisconfigurationSection, OnStoreErrorSection,
        PolicyDocument,
    },
    response::{
        HeaderFormatSection, HeaderSettingsSection, HeadersSection, RejectionSection,
        RejectionsSection,
    },
    store::{
        BreakerSection, RejectionCacheSection, RejectionCacheSettings, SentinelSection,
        StoreDocument, TlsSection,
    },
};
pub use error::{LoadError, Mistake, Position};
pub use format::Format;
pub use registry::Registry;
pub use secret::Secret;
pub use watch::{Watch, WatchError, WatchStatus, WatchTarget, Watcher};
