//! A store in process, in a build without Redis.

use std::sync::Arc;

use super::in_process;
use crate::{
    config::{build::Build, tree::path::Path},
    limiter::Limiter,
    store::{Store, section::StoreSection},
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
fn is_in_process(section: &StoreSection) -> bool {
    let in_process = StoreSection {
        max_keys: section.max_keys,
        ..StoreSection::default()
    };
    section.max_keys.is_some() && *section == in_process
}

#[cfg(test)]
mod tests {
    use crate::config::{Document, Format, Registry};

    #[test]
    fn a_store_is_in_process() {
        let limiter = |store: &str| {
            let text = format!("{store}\n[policies.api]\nquota = '1/h'");
            Document::parse(&text, Format::Toml)?.limiter(&Registry::new())
        };
        let written = limiter("store.max_keys = 5").expect("a limiter").document();
        let keys = written.store.and_then(|store| store.max_keys);
        assert_eq!(keys.map(|keys| keys.get()), Some(5));
        for store in [
            "store.url = 'redis://h'",
            "store = {}",
            "store = { max_keys = 5, prefix = 'a:' }",
        ] {
            let error = limiter(store).expect_err("no Redis").to_string();
            assert!(error.contains("the feature `redis` of tollgate"), "{error}");
        }
    }
}
