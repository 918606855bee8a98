use std::{fmt, sync::Arc};

use crate::{key::Key, limiter::Keys};

/// What a request counts under, and what it costs.
pub trait RequestKeys<Req> {
    /// The request's keys, for each policy.
    fn keys(&self, request: &Req) -> Keys;

    /// What it costs under every policy; each policy's own cost if `None`.
    fn cost(&self, request: &Req) -> Option<u64>;
}

/// All requests count under the same keys.
#[derive(Clone, Debug)]
pub struct StaticKeys {
    pub(crate) keys: Keys,
    pub(crate) cost: Option<u64>,
}

impl Default for StaticKeys {
    fn default() -> Self {
        Self {
            keys: Key::global().into(),
            cost: None,
        }
    }
}

impl<Req> RequestKeys<Req> for StaticKeys {
    fn keys(&self, _request: &Req) -> Keys {
        self.keys.clone()
    }

    fn cost(&self, _request: &Req) -> Option<u64> {
        self.cost
    }
}

/// A function of the request says what it counts under.
pub struct KeysFn<Req> {
    pub(crate) keys: Function<Req, Keys>,
    pub(crate) cost: Option<Function<Req, u64>>,
}

type Function<Req, T> = Arc<dyn Fn(&Req) -> T + Send + Sync>;

impl<Req> RequestKeys<Req> for KeysFn<Req> {
    fn keys(&self, request: &Req) -> Keys {
        (self.keys)(request)
    }

    fn cost(&self, request: &Req) -> Option<u64> {
        self.cost.as_ref().map(|cost| cost(request))
    }
}

impl<Req> Clone for KeysFn<Req> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            cost: self.cost.clone(),
        }
    }
}

impl<Req> fmt::Debug for KeysFn<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeysFn").finish_non_exhaustive()
    }
}
