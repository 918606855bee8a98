use std::{fmt, sync::Arc};

use crate::{key::Key, limiter::Keys};

/// Finds the keys and the cost of an outgoing request: set by [`OutgoingLayer::keys_from`](crate::OutgoingLayer::keys_from).
pub trait RequestKeys<Req> {
    /// The request's keys: one for all policies, or one for each.
    fn keys(&self, request: &Req) -> Keys;

    /// The request's cost in units under every policy; `None` for each policy's own cost.
    fn cost(&self, request: &Req) -> Option<u64>;
}

/// The same keys for all requests: set by [`OutgoingLayer::key`](crate::OutgoingLayer::key).
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

/// Keys that a function finds in each request: set by [`OutgoingLayer::key_with`](crate::OutgoingLayer::key_with).
pub struct KeysFn<Req> {
    pub(crate) keys: RequestFn<Req, Keys>,
    pub(crate) cost: Option<RequestFn<Req, u64>>,
}

type RequestFn<Req, T> = Arc<dyn Fn(&Req) -> T + Send + Sync>;

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
