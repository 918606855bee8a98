//! What is said of a limiter's policies in the same words each time.

use std::sync::OnceLock;

use bytes::Bytes;
use http::HeaderValue;

use super::{Counted, Decision, Part};

/// Header values and problem bodies that are the same for each response, rendered once.
#[derive(Debug)]
pub(crate) struct Said {
    /// How many policies are enforced and no bans.
    pub(crate) live: usize,
    /// What they are, where each of them applies with its own quota.
    pub(crate) policies: OnceLock<HeaderValue>,
    /// By policy: the body of a rejection by that policy alone.
    pub(crate) problems: Box<[OnceLock<Problem>]>,
}

/// A text, and its length as a header's value.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) text: Bytes,
    pub(crate) length: HeaderValue,
}

impl Said {
    /// Nothing yet, of so many policies.
    pub(crate) fn new(policies: usize, live: usize) -> Self {
        Self {
            live,
            policies: OnceLock::new(),
            problems: (0..policies).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl Decision {
    /// Where it is kept what the policies are, if all that are enforced applied with their own quotas.
    pub(crate) fn policies_said(&self) -> Option<&OnceLock<HeaderValue>> {
        let said = self.books.said();
        let (enforced, _) = self.counted.split_at(self.enforced());
        let plain = |counted: &Counted| counted.part == Part::Live && counted.tier.is_none();
        (enforced.len() == said.live && enforced.iter().all(plain)).then_some(&said.policies)
    }

    /// The cache slot of the problem body, if exactly one policy rejected this request.
    pub(crate) fn problem_said(&self) -> Option<&OnceLock<Problem>> {
        let mut refused = self.policies().filter(|verdict| verdict.rejected());
        match (refused.next(), refused.next()) {
            (Some(one), None) => self.books.said().problems.get(one.counted.policy as usize),
            _ => None,
        }
    }
}
