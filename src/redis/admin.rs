//! What operators ask of the store on Redis.

use std::{future::ready, iter::repeat_n, pin::Pin, sync::Arc};

use super::{
    RedisStore,
    overrides::{self, RedisOverrides},
    request::limit::RedisLimit,
    topology::Topology,
};
use crate::{
    error::{StoreError, overrides::OverrideError},
    key::Key,
    runtime::runtime_with_io,
    store::{
        BlockedKeysFuture, CallersFuture, HealthFuture, LimitHandle, OverrideFuture,
        OverrideListFuture, OverrideTable, StoreAdmin, health::HealthWarning, overrides::Override,
    },
};

const OVERRIDES_OFF: StoreError = StoreError::Unsupported("overrides, which are switched off");

/// A list of callers without its header. An expired list may still exist during its last millisecond.
const CALLERS_SCRIPT: &str = "
    if redis.call('PTTL', KEYS[1]) == 0 then
        return {}
    end
    return redis.call('LRANGE', KEYS[1], 1, -1)
";

/// How many units of a list are returned at most, whatever a foreign value says: the largest quota that is stored with its callers,
/// and as deep a debt.
const MAX_LISTED_UNITS: usize = 200_000;

/// The callers in a list, once for each unit: after a caller that was charged several come `=` and their number.
fn callers_in(list: &[Vec<u8>]) -> Vec<Key> {
    let mut callers = Vec::new();
    for element in list {
        let units = element
            .strip_prefix(b"=")
            .and_then(|units| str::from_utf8(units).ok()?.parse::<usize>().ok());
        match (units, callers.last().copied()) {
            (Some(units), Some(last)) => {
                let room = MAX_LISTED_UNITS.saturating_sub(callers.len());
                callers.extend(repeat_n(last, units.saturating_sub(1).min(room)));
            }
            _ => callers.extend(Key::parse_stored(element)),
        }
    }
    callers
}

impl StoreAdmin for RedisStore {
    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        let info = limit.info();
        let name = limit
            .context::<RedisLimit>()
            .filter(|_| info.records_caller && info.permit_ttl.is_none())
            .map(|limit| limit.names.of(key));
        let shared = self.inner.shared.clone();
        let tag = shared.topology.tag_of(key);
        Box::pin(async move {
            let Some(name) = name else {
                return Ok(Vec::new());
            };
            let mut range = redis::cmd("EVAL");
            range.arg(CALLERS_SCRIPT).arg(1).arg(name);
            shared.breaker(tag).check()?;
            if runtime_with_io().is_none() {
                return Err(StoreError::NoRuntime("`callers` waits for the server"));
            }
            let list = shared.topology.run::<Vec<Vec<u8>>>(tag, &range);
            let list = tokio::time::timeout(shared.timeout, list).await;
            let list = list.map_err(|_| StoreError::timeout())??;
            Ok(callers_in(&list))
        })
    }

    fn health_check(&self, limits: &[LimitHandle]) -> HealthFuture {
        let (store, limits) = (self.clone(), limits.to_vec());
        Box::pin(async move {
            let report = store.check_health(&limits).await;
            let refunds = &store.inner.shared.pending_refunds;
            let report = report.with_dropped_refunds(refunds.dropped());
            let report = report.with_unconfirmed(refunds.unconfirmed());
            match store.inner.shared.take_extended_calls() {
                0 => report,
                calls => report.with_warning(HealthWarning::HeldUp { calls }),
            }
        })
    }

    fn blocked_keys(&self, limits: &[LimitHandle], max: usize) -> BlockedKeysFuture {
        let (store, limits) = (self.clone(), limits.to_vec());
        Box::pin(async move { store.find_blocked_keys(&limits, max).await })
    }

    fn overrides(&self) -> Option<&OverrideTable> {
        Some(&self.inner.overrides.as_ref()?.table)
    }

    fn set_override(&self, policy: &str, key: &Key, setting: Option<Override>) -> OverrideFuture {
        let (policy, key) = (policy.to_owned(), *key);
        self.with_overrides(async move |overrides, topology| {
            overrides.change(&topology, &policy, &key, setting).await
        })
    }

    fn list_overrides(&self) -> OverrideListFuture {
        self.with_overrides(async |overrides, topology| {
            overrides.read(&topology).await?;
            Ok(overrides.table.all())
        })
    }
}

impl RedisStore {
    /// Starts `work` on the overrides, on the background thread.
    fn with_overrides<T: Send + 'static, F>(
        &self,
        work: impl FnOnce(Arc<RedisOverrides>, Topology) -> F,
    ) -> Pin<Box<dyn Future<Output = Result<T, OverrideError>> + Send>>
    where
        F: Future<Output = Result<T, OverrideError>> + Send + 'static,
    {
        match self.inner.overrides.clone() {
            Some(overrides) => {
                let topology = self.inner.shared.topology.clone();
                Box::pin(overrides::spawn(work(overrides, topology)))
            }
            None => Box::pin(ready(Err(OVERRIDES_OFF.into()))),
        }
    }
}
