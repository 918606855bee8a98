//! The builder of a document's limiter: its policies, and the settings outside of policies.

use std::{collections::HashMap, sync::Arc};

use super::{Build, with};
use crate::{
    config::{
        document::store_error::{OnStoreErrorSection, StoreErrorAction},
        tree::path::Path,
    },
    limiter::LimiterBuilder,
    policy::on_store_error::{LocalFallback, OnStoreError},
    store::Store,
};

impl Build<'_> {
    /// The builder with all settings. `store` is the one that will count, if it is known.
    pub(super) fn limiter<T>(&mut self, store: Option<Arc<dyn Store>>) -> LimiterBuilder<T> {
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
        let action = document.on_store_error.as_ref();
        let action = action.map(OnStoreErrorSection::action);
        builder = with(builder, action, LimiterBuilder::on_store_error);
        builder = with(
            builder,
            document.on_misconfiguration,
            LimiterBuilder::on_misconfiguration,
        );
        builder = with(
            builder,
            document.on_unknown_address,
            LimiterBuilder::on_unknown_address,
        );
        builder = with(
            builder,
            document.count_preflights,
            LimiterBuilder::count_preflights,
        );
        builder.validate(store.as_deref(), &mut |error| self.found_by_builder(&error));
        with(builder, store, LimiterBuilder::stored)
    }
}

impl OnStoreErrorSection {
    pub(super) fn action(&self) -> OnStoreError {
        match self {
            Self::Action(StoreErrorAction::Admit) => OnStoreError::Admit,
            Self::Action(StoreErrorAction::Reject) => OnStoreError::Reject,
            Self::Local(section) => {
                let section = &section.local_fallback;
                let fallback = LocalFallback::shared_by(section.processes);
                fallback
                    .write_back(section.write_back.unwrap_or_default())
                    .into()
            }
        }
    }
}
