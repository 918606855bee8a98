//! No store but counts in process, in a build without Redis.

use std::sync::Arc;

use crate::{
    config::{build::Build, tree::path::Path},
    limiter::Limiter,
    store::Store,
};

impl Build<'_> {
    /// The store that the document opens; `None` for counts in process.
    pub(in crate::config::build) fn store(&mut self) -> Option<Arc<dyn Store>> {
        if self.document.store.is_some() {
            let expected = "the feature `redis` of tollgate, or no store";
            self.found(&Path::default().key("store"), "a store on Redis", expected);
        }
        None
    }

    /// Notes a mistake if the document has a store. No credentials of one differ.
    pub(in crate::config::build) fn same_store(&mut self, _limiter: &Limiter) -> Vec<&'static str> {
        self.store();
        Vec::new()
    }
}
