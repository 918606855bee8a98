//! What the handlers share: the limiter or layer that they are about, and the state of the API.

use std::{env, fs, sync::Arc, time::Duration};

use tokio::sync::{Mutex, Semaphore};

use super::{activity::Activity, token::Authentication};
use crate::{
    layer::{LimiterOrLayer, from_limiter_or_layer},
    limiter::Limiter,
    store::health::HealthReport,
};

/// How long a report answers further requests. A check costs a round trip per policy, and needs no token.
const MAX_REPORT_AGE: Duration = Duration::from_secs(2);

/// The most streams of events at once. Each costs a report a second.
const MAX_EVENT_STREAMS: usize = 64;

/// The state, as handlers take it.
pub(super) type SharedState = axum::extract::State<Arc<AdminState>>;

/// What the handlers share.
#[derive(Debug)]
pub(super) struct AdminState {
    pub(super) target: AdminTarget,
    pub(super) authentication: Authentication,
    pub(super) activity: Option<Arc<Activity>>,
    /// The name of this process's machine, or what stands for it.
    pub(super) host: String,
    /// A permit for each further stream of events.
    pub(super) event_streams: Arc<Semaphore>,
    /// Held while the keys of the store are searched, which is done by one request at a time.
    pub(super) search: Mutex<()>,
    /// The text of the document that the application has loaded.
    #[cfg(feature = "config")]
    pub(super) document: Option<Arc<str>>,
    #[cfg(feature = "config")]
    pub(super) watcher: Option<Arc<crate::config::Watcher>>,
}

impl AdminState {
    pub(super) fn new(
        target: AdminTarget,
        authentication: Authentication,
        activity: Option<Arc<Activity>>,
        host: Option<String>,
    ) -> Self {
        Self {
            target,
            authentication,
            activity,
            host: host.unwrap_or_else(host_name),
            event_streams: Arc::new(Semaphore::new(MAX_EVENT_STREAMS)),
            search: Mutex::default(),
            #[cfg(feature = "config")]
            document: None,
            #[cfg(feature = "config")]
            watcher: None,
        }
    }

    pub(super) fn limiter(&self) -> &Limiter {
        self.target.limiter()
    }

    /// The health of the store, of not too long ago.
    pub(super) async fn health(&self) -> HealthReport {
        self.limiter().recent_health(MAX_REPORT_AGE).await
    }
}

/// The machine's name, as Linux has it, or else as the environment does; empty if neither does.
fn host_name() -> String {
    let of_linux = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let of_environment = || {
        ["HOSTNAME", "COMPUTERNAME"]
            .into_iter()
            .find_map(|name| env::var(name).ok())
    };
    let name = of_linux.or_else(of_environment).unwrap_or_default();
    name.trim().to_owned()
}

/// What an [`Admin`](super::Admin) is about: a [`Limiter`], or a [`RateLimitLayer`](crate::RateLimitLayer) and its limiter, of which it keeps a clone.
#[derive(Clone, Debug)]
pub struct AdminTarget(LimiterOrLayer);

from_limiter_or_layer!(AdminTarget);

impl AdminTarget {
    pub(super) fn limiter(&self) -> &Limiter {
        self.0.limiter()
    }
}
