//! A store in process, in a build without Redis.

use std::sync::Arc;

use super::in_process;
use crate::{
    config::{build::Build, document::store::StoreDocument, path::Path},
    limiter::Limiter,
    store::Store,
};

impl Build<'_> {
    /// The store that the document opens, in process if it says nothing of one.
    pub(in crate::config::build) fn store(&mut self) -> Option<Arc<dyn Store>> {
        let Some(section) = &self.document.store else {
            return Some(in_process(None));
        };
        if !is_in_process(section) {
            let expected = "the feature `redis` of tollgate, or max_keys alone";
            self.found(&Path::default().key("store"), "a store on Redis", expected);
        }
        Some(in_process(section.max_keys))
    }

    /// Notes a mistake if the document has another store than the limiter. No credentials of one differ.
    pub(in crate::config::build) fn same_store(&mut self, limiter: &Limiter) -> Vec<&'static str> {
        match &self.document.store {
            Some(section) if is_in_process(section) => {
                self.same_store_in_process(limiter, section.max_keys);
            }
            _ => drop(self.store()),
        }
        Vec::new()
    }
}

/// Whether the document says nothing of a store on Redis.
fn is_in_process(section: &StoreDocument) -> bool {
    let in_process = StoreDocument {
        max_keys: section.max_keys,
        ..StoreDocument::default()
    };
    section.max_keys.is_some() && *section == in_process
}
