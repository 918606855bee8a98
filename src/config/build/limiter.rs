//! A limiter's settings outside of policies.

use std::collections::HashMap;

use super::Build;
use crate::{
    config::{
        document::store_error::{OnStoreErrorSection, StoreErrorAction},
        tree::path::Path,
    },
    limiter::LimiterBuilder,
    policy::on_store_error::{LocalFallback, OnStoreError},
};

impl Build<'_> {
    /// The builder with all settings but the store.
    pub(super) fn limiter<T>(&mut self) -> LimiterBuilder<T> {
        let document = self.document;
        let root = Path::default();
        let mut builder = LimiterBuilder::new().shared_by_keys(self.shared_by_keys());
        for observer in self.registry.observers() {
            builder = builder.observe(observer.clone());
        }
        let policies = self.policies();
        for policy in &policies {
            builder = builder.policy(policy.clone());
        }
        let by_name = policies.iter().map(|policy| (policy.name(), policy));
        let by_name: HashMap<_, _> = by_name.collect();
        for (name, lists) in [("deny", &document.deny), ("allow", &document.allow)] {
            for (index, list) in lists.iter().enumerate() {
                let path = root.key(name).index(index);
                builder = match self.list(&path, list, &by_name) {
                    Some(list) if name == "deny" => builder.deny(list),
                    Some(list) => builder.allow(list),
                    None => builder,
                };
            }
        }
        builder = builder.conditions(self.conditions(&root, &document.skip, &document.only));
        if let Some(action) = &document.on_store_error {
            builder = match self.on_store_error(&root.key("on_store_error"), action) {
                Some(action) => builder.on_store_error(action),
                None => builder,
            };
        }
        if let Some(action) = document.on_misconfiguration {
            builder = builder.on_misconfiguration(action);
        }
        if let Some(action) = document.on_unknown_address {
            builder = builder.on_unknown_address(action);
        }
        match document.count_preflights {
            Some(count) => builder.count_preflights(count),
            None => builder,
        }
    }

    pub(super) fn on_store_error(
        &mut self,
        path: &Path,
        action: &OnStoreErrorSection,
    ) -> Option<OnStoreError> {
        let action = match action {
            OnStoreErrorSection::Action(StoreErrorAction::Admit) => OnStoreError::Admit,
            OnStoreErrorSection::Action(StoreErrorAction::Reject) => OnStoreError::Reject,
            OnStoreErrorSection::Local(section) => {
                let section = &section.local_fallback;
                let fallback = LocalFallback::shared_by(section.processes);
                fallback
                    .write_back(section.write_back.unwrap_or_default())
                    .into()
            }
        };
        let processes = path.key("local_fallback").key("processes");
        self.value(&processes, action.validate())?;
        Some(action)
    }
}
