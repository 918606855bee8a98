//! A request's head, of which nothing is read twice.

use std::cell::RefCell;

use http::request::Parts;
use smallvec::SmallVec;

use crate::{
    extract::{Extracted, KeyExtractor},
    policy::skip::path::RequestPath,
};

/// The head of a request that is evaluated: its path is decoded once for the conditions of all policies, and extractors that
/// several of them share are asked once.
pub(crate) struct RequestHead<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) path: RequestPath<'a>,
    /// What was found, by the index that an extractor has among those that are shared.
    extracted: RefCell<SmallVec<[Option<Extracted>; 2]>>,
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

    /// What an extractor finds; `shared` is its index if others are equal to it.
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
