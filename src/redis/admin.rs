//! What operators ask of the store on Redis.

use std::{future::ready, iter::repeat_n, pin::Pin, sync::Arc};

use super::{
    RedisStore,
    io::Io,
    overrides::{self, RedisOverrides},
    request::limit::RedisLimit,
};
use crate::{
    error::{StoreError, overrides::OverrideError},
    key::Key,
    store::{
        BlockedKeysFuture, CallersFuture, HealthFuture, LimitHandle, OverrideFuture,
        OverrideListFuture, OverrideTable, StoreAdmin, overrides::Override,
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
        let io = self.inner.io.clone();
        let tag = io.tag_of(key);
        Box::pin(async move {
            let Some(name) = name else {
                return Ok(Vec::new());
            };
            let mut range = redis::cmd("EVAL");
            range.arg(CALLERS_SCRIPT).arg(1).arg(name);
            io.check_breaker(tag)?;
            let list: Vec<Vec<u8>> = io.run(tag, range, io.timeout()).await?;
            Ok(callers_in(&list))
        })
    }

    fn health_check(&self, limits: &[LimitHandle]) -> HealthFuture {
        let (store, limits) = (self.clone(), limits.to_vec());
        Box::pin(async move {
            let report = store.check_health(&limits).await;
            let adjustments = &store.inner.io.adjustments;
            let report = report.with_dropped_refunds(adjustments.dropped());
            report.with_unconfirmed(adjustments.unconfirmed())
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
        self.with_overrides(async move |overrides, io| {
            overrides.change(&io, &policy, &key, setting).await
        })
    }

    fn list_overrides(&self) -> OverrideListFuture {
        self.with_overrides(async |overrides, io| {
            overrides.read(&io).await?;
            Ok(overrides.table.all())
        })
    }
}

impl RedisStore {
    /// Starts `work` on the overrides, on the IO thread.
    fn with_overrides<T: Send + 'static, F>(
        &self,
        work: impl FnOnce(Arc<RedisOverrides>, Arc<Io>) -> F,
    ) -> Pin<Box<dyn Future<Output = Result<T, OverrideError>> + Send>>
    where
        F: Future<Output = Result<T, OverrideError>> + Send + 'static,
    {
        match self.inner.overrides.clone() {
            Some(overrides) => {
                let io = self.inner.io.clone();
                Box::pin(overrides::spawn(&self.inner.io, work(overrides, io)))
            }
            None => Box::pin(ready(Err(OVERRIDES_OFF.into()))),
        }
    }
}
