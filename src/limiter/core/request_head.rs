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
    /// By slot.
    extracted: RefCell<SmallVec<[Option<Extracted>; 2]>>,
}

/// An extractor's place among those that are shared; `None` if it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtractorSlot(pub(crate) Option<usize>);

impl<'a> RequestHead<'a> {
    #[inline]
    pub(crate) fn new(parts: &'a Parts) -> Self {
        Self {
            parts,
            path: RequestPath::of(parts),
            extracted: RefCell::default(),
        }
    }

    /// What an extractor finds.
    #[inline]
    pub(crate) fn extract(
        &self,
        extractor: &dyn KeyExtractor,
        ExtractorSlot(slot): ExtractorSlot,
    ) -> Extracted {
        match slot {
            None => extractor.extract(self.parts),
            Some(slot) => self.extract_once(extractor, slot),
        }
    }

    fn extract_once(&self, extractor: &dyn KeyExtractor, slot: usize) -> Extracted {
        if let Some(Some(found)) = self.extracted.borrow().get(slot) {
            return *found;
        }
        let found = extractor.extract(self.parts);
        let mut extracted = self.extracted.borrow_mut();
        if extracted.len() <= slot {
            extracted.resize(slot + 1, None);
        }
        if let Some(place) = extracted.get_mut(slot) {
            *place = Some(found);
        }
        found
    }
}
