//! A request of a limiter: a call by hand, or the head of an HTTP request.

use std::{cell::RefCell, net::IpAddr, sync::Arc};

use http::request::Parts;
use smallvec::SmallVec;

use super::keys::Keys;
use crate::{
    extract::{Extracted, KeyExtractor},
    policy::skip::path::RequestPath,
    quota::Quota,
    store::Op,
};

/// What a limiter decides.
#[derive(Clone, Copy)]
pub(crate) struct LimitRequest<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) keys: KeySource<'a>,
    /// `None` for a call by hand without a request: then no condition applies.
    pub(crate) head: Option<&'a RequestHead<'a>>,
    pub(crate) settings: Option<&'a CallSettings>,
}

/// What a decision is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To charge as many of so many equal requests as fit. Nothing is refunded, and no permit is held.
    Check(u32),
    /// To charge a request whose charge may be settled, and whose permits are held.
    Admit,
    /// An attempt of a call that waits. A rejection is followed by another attempt, so bans don't count it.
    Attempt,
    /// The only attempt of a call that waits, or its last one.
    LastAttempt,
    /// To find out what a request would get. Nothing is charged, and a failure of the store is an error.
    Peek,
}

/// Where the keys of a request are from.
#[derive(Clone, Copy)]
pub(crate) enum KeySource<'a> {
    /// A call by hand has them. A policy that it does not name does not apply.
    Call(&'a Keys),
    /// Extractors find them in the head.
    Head,
    /// Those that a call does not have are found in the head.
    CallOrHead(&'a Keys),
}

/// The settings of one call, in place of those of the policies.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallSettings {
    pub(crate) cost: Option<u64>,
    /// Costs by policy.
    pub(crate) costs: Vec<(String, u64)>,
    /// Quotas by policy.
    pub(crate) quotas: Vec<(String, Quota)>,
    /// The client's address, for access lists.
    pub(crate) address: Option<IpAddr>,
    /// The head of the request that the call is for.
    pub(crate) parts: Option<Arc<Parts>>,
}

/// The head of an HTTP request, and what several policies find in it.
pub(crate) struct RequestHead<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) path: RequestPath<'a>,
    /// What the shared extractors found, by their index.
    extracted: RefCell<SmallVec<[Option<Extracted>; 2]>>,
}

impl Purpose {
    /// The store's operation.
    #[inline]
    pub(crate) fn op(self) -> Op {
        match self {
            Self::Check(requests) => Op::Acquire(requests),
            Self::Admit | Self::Attempt | Self::LastAttempt => Op::Acquire(1),
            Self::Peek => Op::Peek,
        }
    }

    /// The number of requests that are decided.
    pub(crate) fn requests(self) -> u64 {
        match self {
            Self::Check(requests) => requests.into(),
            Self::Admit | Self::Attempt | Self::LastAttempt => 1,
            Self::Peek => 0,
        }
    }

    /// Whether requests are charged.
    #[inline]
    pub(crate) fn charges(self) -> bool {
        self != Self::Peek
    }

    /// Whether the call waits for units, and for a store that failed.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Attempt | Self::LastAttempt)
    }
}

impl KeySource<'_> {
    /// The keys of a call.
    pub(crate) fn given(&self) -> Option<&Keys> {
        match self {
            Self::Call(keys) | Self::CallOrHead(keys) => Some(keys),
            Self::Head => None,
        }
    }
}

impl CallSettings {
    /// The names of the policies that it has settings for.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &str> {
        let costs = self.costs.iter().map(|(name, _)| &**name);
        costs.chain(self.quotas.iter().map(|(name, _)| &**name))
    }

    /// The cost under the policy of that name.
    pub(crate) fn cost(&self, policy: &str) -> Option<u64> {
        value_of(&self.costs, policy).or(self.cost)
    }

    /// The quota under the policy of that name.
    pub(crate) fn quota(&self, policy: &str) -> Option<Quota> {
        value_of(&self.quotas, policy)
    }
}

fn value_of<T: Copy>(values: &[(String, T)], policy: &str) -> Option<T> {
    let (_, value) = values.iter().find(|(name, _)| name == policy)?;
    Some(*value)
}

impl<'a> RequestHead<'a> {
    #[inline]
    pub(crate) fn new(parts: &'a Parts) -> Self {
        Self {
            parts,
            path: RequestPath::of(parts),
            extracted: RefCell::default(),
        }
    }

    /// What an extractor finds. One that policies share, by that index, runs once.
    #[inline]
    pub(crate) fn extract(&self, extractor: &dyn KeyExtractor, shared: Option<usize>) -> Extracted {
        match shared {
            None => extractor.extract(self.parts),
            Some(index) => self.extract_once(extractor, index),
        }
    }

    fn extract_once(&self, extractor: &dyn KeyExtractor, index: usize) -> Extracted {
        if let Some(Some(found)) = self.extracted.borrow().get(index) {
            return *found;
        }
        let found = extractor.extract(self.parts);
        let mut extracted = self.extracted.borrow_mut();
        let len = extracted.len().max(index + 1);
        extracted.resize(len, None);
        extracted[index] = Some(found);
        found
    }
}
