use std::{fmt, sync::Arc};

use crate::{key::Key, limiter::Keys};

/// What a request counts under, and what it costs.
pub trait Question<Req> {
    /// Who is asking, for each policy.
    fn keys(&self, request: &Req) -> Keys;

    /// What it costs under every policy; each policy's own cost if `None`.
    fn cost(&self, request: &Req) -> Option<u64>;
}

/// All requests count under the same keys.
#[derive(Clone, Debug)]
pub struct Fixed {
    pub(super) keys: Keys,
    pub(super) cost: Option<u64>,
}

impl Default for Fixed {
    fn default() -> Self {
        Self {
            keys: Key::global().into(),
            cost: None,
        }
    }
}

impl<Req> Question<Req> for Fixed {
    fn keys(&self, _request: &Req) -> Keys {
        self.keys.clone()
    }

    fn cost(&self, _request: &Req) -> Option<u64> {
        self.cost
    }
}

/// A function of the request says what it counts under.
pub struct ByRequest<Req> {
    pub(super) keys: Function<Req, Keys>,
    pub(super) cost: Option<Function<Req, u64>>,
}

type Function<Req, T> = Arc<dyn Fn(&Req) -> T + Send + Sync>;

impl<Req> Question<Req> for ByRequest<Req> {
    fn keys(&self, request: &Req) -> Keys {
        (self.keys)(request)
    }

    fn cost(&self, request: &Req) -> Option<u64> {
        self.cost.as_ref().map(|cost| cost(request))
    }
}

impl<Req> Clone for ByRequest<Req> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            cost: self.cost.clone(),
        }
    }
}

impl<Req> fmt::Debug for ByRequest<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByRequest").finish_non_exhaustive()
    }
}
