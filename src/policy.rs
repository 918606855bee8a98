//! A named rule: how much, counted how, for whom, at what cost.

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::{
    error::Unfit,
    extract::{self, KeyExtractor},
    key::Key,
    quota::Quota,
    strategy::{Concurrency, Gcra, Strategy},
};

/// A named rule: a quota, how it is counted, who is asking, and what a request costs.
///
/// Unless told otherwise it counts by [client address](extract::peer), with [`Gcra`] ([`Concurrency`] for requests in
/// flight), one unit a request.
///
/// ```
/// use tollgate::{Policy, Quota, extract};
///
/// let policy = Policy::new("uploads", Quota::requests(100).per_hour())
///     .key(extract::header("x-api-key"))
///     .cost_with(|parts| if parts.uri.path().starts_with("/video") { 10 } else { 1 });
/// assert_eq!(policy.name(), "uploads");
/// ```
#[derive(Clone)]
pub struct Policy {
    name: Arc<str>,
    quota: Quota,
    strategy: Option<Arc<dyn Strategy>>,
    extractor: Arc<dyn KeyExtractor>,
    missing: Option<MissingKey>,
    cost: Cost,
    caller: Option<Arc<dyn KeyExtractor>>,
}

/// What a request costs, in units.
#[derive(Clone)]
#[non_exhaustive]
pub enum Cost {
    /// So many units. A request that costs nothing always passes.
    Fixed(u64),
    /// As many as the function says.
    With(Arc<dyn Fn(&Parts) -> u64 + Send + Sync>),
}

/// What to do with a request in which a policy finds no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The policy does not apply to it.
    Skip,
    /// It is refused: 400 Bad Request.
    Refuse,
    /// All such requests are counted together, under one key that no request can name.
    Shared,
}

impl Policy {
    /// A policy that allows each client address `quota`.
    ///
    /// The name stands in headers, logs and keys: visible ASCII, at most 64 characters, without `"` and `\`. Policies
    /// of the same name in the same store share their counts.
    pub fn new(name: impl Into<Arc<str>>, quota: Quota) -> Self {
        Self {
            name: name.into(),
            quota,
            strategy: None,
            extractor: Arc::new(extract::peer()),
            missing: None,
            cost: Cost::Fixed(1),
            caller: None,
        }
    }

    /// Counts by `strategy`, in place of [`Gcra`].
    #[must_use]
    pub fn strategy(mut self, strategy: impl Strategy) -> Self {
        self.strategy = Some(Arc::new(strategy));
        self
    }

    /// Counts by what `extractor` finds in a request, in place of the client's address.
    #[must_use]
    pub fn key(mut self, extractor: impl KeyExtractor) -> Self {
        self.extractor = Arc::new(extractor);
        self
    }

    /// What to do with a request that has no key, in place of what the extractor suggests: to share one bucket where
    /// the client's address is unknown, to refuse everywhere else.
    #[must_use]
    pub fn missing_key(mut self, missing: MissingKey) -> Self {
        self.missing = Some(missing);
        self
    }

    /// Charges `units` a request, in place of one. Zero is free.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = Cost::Fixed(units);
        self
    }

    /// Charges each request what `cost` says.
    #[must_use]
    pub fn cost_with<F>(mut self, cost: F) -> Self
    where
        F: Fn(&Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost = Cost::With(Arc::new(cost));
        self
    }

    /// Signs each charge with what `extractor` finds in its request, in place of the policy's own key: for strategies
    /// that remember who called, such as [`ListWindow`](crate::ListWindow).
    #[must_use]
    pub fn caller(mut self, extractor: impl KeyExtractor) -> Self {
        self.caller = Some(Arc::new(extractor));
        self
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy's quota.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }

    pub(crate) fn counted_by(&self) -> &dyn Strategy {
        match &self.strategy {
            Some(strategy) => &**strategy,
            None if self.quota.is_concurrent() => const { &Concurrency::new() },
            None => &Gcra,
        }
    }

    pub(crate) fn extractor(&self) -> &dyn KeyExtractor {
        &*self.extractor
    }

    pub(crate) fn when_missing(&self) -> MissingKey {
        self.missing
            .unwrap_or_else(|| self.extractor.when_missing())
    }

    pub(crate) fn cost_of(&self, parts: &Parts) -> u64 {
        match &self.cost {
            Cost::Fixed(units) => *units,
            Cost::With(cost) => cost(parts),
        }
    }

    pub(crate) fn caller_of(&self, parts: &Parts) -> Option<Key> {
        self.caller.as_ref()?.key(parts)
    }

    /// Asks the extractors whether they can find keys.
    pub(crate) fn check_extractors(&self) -> Result<(), Unfit> {
        let caller = self.caller.as_ref();
        caller.map_or(Ok(()), |caller| caller.check())?;
        self.extractor.check()
    }

    /// What it costs where there is no request to look at.
    pub(crate) fn plain_cost(&self) -> u64 {
        match self.cost {
            Cost::Fixed(units) => units,
            Cost::With(_) => 1,
        }
    }

    /// Names stand as strings in structured fields (RFC 9651, section 3.3.3), so they are what these can hold.
    pub(crate) fn check_name(&self) -> Result<(), Unfit> {
        let name = &*self.name;
        let visible = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(visible) {
            return Err(Unfit::new(
                format!("the name {name:?}"),
                "1 to 64 visible ASCII characters without \" and \\",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("quota", &format_args!("{}", self.quota))
            .field("strategy", &self.counted_by())
            .field("key", &self.extractor)
            .field("missing_key", &self.when_missing())
            .field("cost", &self.cost)
            .finish()
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(units) => write!(f, "Fixed({units})"),
            Self::With(_) => f.write_str("With(..)"),
        }
    }
}
