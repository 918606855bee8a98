//! Limits from configuration files.
//!
//! A [`Document`] says what the builders of a [`Limiter`](crate::Limiter) and a [`RateLimitLayer`](crate::RateLimitLayer) say, as
//! text: in TOML, or in YAML or JSON with the features `config-yaml` and `config-json`. A [`Watch`] puts each change of its file in
//! force while requests are served.

mod build;
mod content;
mod describe;
mod document;
mod error;
mod format;
mod names;
mod registry;
mod secret;
mod text;
mod tree;
mod watch;

pub use document::{
    Document,
    access::{
        AddressesSection, BearerSection, ClientIpSection, FileSection, KeyText, KeysSection,
        ListSection,
    },
    conditions::ConditionsSection,
    policy::{
        ChargeSection, CostRule, CostSection, KeySection, Named, PolicySection, QuotaLookupSection,
    },
    response::{HeaderFormat, HeaderSettings, HeadersSection, RejectionSection},
    store::{
        BreakerSection, RejectionCacheSection, RejectionCacheSettings, SentinelSection,
        StoreSection, TlsSection,
    },
    store_error::{LocalFallbackSection, LocalSection, OnStoreErrorSection, StoreErrorAction},
};
pub use error::{LoadError, Mistake, Position};
pub use format::Format;
pub use registry::Registry;
pub use secret::Secret;
pub use watch::{Watch, WatchError, WatchStatus, WatchTarget, Watcher};
