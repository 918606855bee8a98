//! What a layer does with what responses say about the provider's limits.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

use crate::{
    error::ConfigError,
    limiter::{Keys, Limiter},
    log::LogThrottle,
    provider::{Feedback, Provider, ReportedLimit},
    quota::Quota,
};

/// Writes the block by a response to the store.
pub(super) type HeedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How often a provider's limit is compared with the policy's quota.
const COMPARE_INTERVAL: Duration = Duration::from_secs(3_600);

/// Obeys a provider's responses: set by [`OutgoingLayer::obey`](crate::OutgoingLayer::obey).
#[derive(Clone)]
pub(super) struct Obey(Arc<Obeyed>);

struct Obeyed {
    limiter: Limiter,
    provider: Provider,
    compared: LogThrottle,
    blocked: LogThrottle,
    failed: LogThrottle,
    unread: LogThrottle,
}

impl Obey {
    pub(super) fn new(limiter: Limiter, provider: Provider) -> Result<Self, ConfigError> {
        let list = block_list(&limiter, &provider)?;
        // One that is added later is not the provider's.
        let provider = provider.block_list(list);
        Ok(Self(Arc::new(Obeyed {
            limiter,
            provider,
            compared: LogThrottle::every(COMPARE_INTERVAL),
            blocked: LogThrottle::new(),
            failed: LogThrottle::new(),
            unread: LogThrottle::new(),
        })))
    }

    /// Reads a response to a call of these keys. `None` if it blocks nothing.
    pub(super) fn heed(
        &self,
        keys: Keys,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<HeedFuture> {
        let obeyed = &*self.0;
        let feedback = obeyed.provider.read(status, headers);
        if !feedback.unread.is_empty() {
            obeyed.log_unread(&feedback);
        }
        if !feedback.limits.is_empty() {
            obeyed.compare(&feedback);
        }
        let (time, cause) = obeyed.provider.block(&feedback)?;
        let cause = cause.to_owned();
        let list = obeyed.provider.block_list_name();
        let blocked = obeyed.limiter.prolong_in_block_list(list, &keys, time);
        let obeyed = self.0.clone();
        Some(Box::pin(async move {
            match blocked.await {
                Ok(time) => obeyed.blocked.log_with(|suppressed| {
                    tracing::warn!(
                        cause,
                        blocked_for = ?time,
                        suppressed,
                        "provider refused a call, or has no units left: calls of its key are blocked"
                    );
                }),
                Err(error) => obeyed.failed.log_with(|suppressed| {
                    tracing::error!(%error, suppressed, "provider's refusal not written to the store");
                }),
            }
        }))
    }
}

/// The block list for a provider's refusals, of a limiter that also has the policies that the provider names.
fn block_list(limiter: &Limiter, provider: &Provider) -> Result<Arc<str>, ConfigError> {
    let name = provider.block_list_name();
    let Some(list) = limiter.block_list(name) else {
        let value = match name {
            Some(name) => format!("a provider's block list {name:?}"),
            None => "a provider without a block list of its own".to_owned(),
        };
        let expected = "a policy that is a block list, such as Policy::block_list(\"refused\"); if there are several, the name of one of them by Provider::block_list";
        return Err(ConfigError::new(value, expected));
    };
    for policy in provider.policies() {
        limiter.policy(policy).map_err(|unknown| {
            ConfigError::new(
                format!("a provider's limit that policy {policy:?} counts ({unknown})"),
                "the name of a policy of the limiter",
            )
        })?;
    }
    Ok(list)
}

impl Obeyed {
    #[cold]
    fn log_unread(&self, feedback: &Feedback) {
        self.unread.log_with(|suppressed| {
            if let Some(unread) = feedback.unread.first() {
                let (field, value) = (unread.field(), unread.value());
                tracing::warn!(
                    field,
                    value,
                    suppressed,
                    "provider's rate limit field not understood"
                );
            }
        });
    }

    /// Logs the first limit that differs from the quota that counts it.
    fn compare(&self, feedback: &Feedback) {
        let mut limits = feedback.limits.iter();
        if let Some((policy, reported, quota)) = limits.find_map(|limit| self.differing(limit)) {
            self.compared.log_with(|suppressed| {
                tracing::warn!(
                    policy,
                    reported,
                    %quota,
                    suppressed,
                    "provider's limit differs from the quota of its policy by more than a tenth"
                );
            });
        }
    }

    /// The policy that counts a limit, the limit, and the policy's quota, if they differ.
    fn differing(&self, limit: &ReportedLimit) -> Option<(&str, u64, Quota)> {
        let (policy, reported) = (self.provider.policy_of(&limit.name)?, limit.limit?);
        let quota = self.limiter.quota_of(policy)?;
        let differs = |units: u64| units.abs_diff(reported) > reported / 10;
        (differs(quota.amount()) && differs(quota.capacity())).then_some((policy, reported, quota))
    }
}

impl fmt::Debug for Obey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Obey").field(&self.0.provider).finish()
    }
}
