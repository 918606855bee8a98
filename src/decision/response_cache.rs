//! Parts of responses that are rendered once.

use std::sync::OnceLock;

use bytes::Bytes;
use http::HeaderValue;

/// Header values and problem bodies that are the same for each response, rendered once.
#[derive(Debug)]
pub(crate) struct ResponseCache {
    /// How many policies are enforced, bans left out.
    pub(crate) live: usize,
    /// The value of `RateLimit-Policy`, if each live policy applies with its own quota.
    pub(crate) policy_header: OnceLock<HeaderValue>,
    /// By policy: the problem body of a rejection by that policy alone.
    pub(crate) problems: Box<[OnceLock<CachedBody>]>,
}

/// A body, and its length as a header's value.
#[derive(Clone, Debug)]
pub(crate) struct CachedBody {
    pub(crate) body: Bytes,
    pub(crate) length: HeaderValue,
}

impl ResponseCache {
    /// An empty cache, for so many policies.
    pub(crate) fn new(policies: usize, live: usize) -> Self {
        Self {
            live,
            policy_header: OnceLock::new(),
            problems: (0..policies).map(|_| OnceLock::new()).collect(),
        }
    }
}
