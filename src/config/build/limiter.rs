//! The builder of a document's limiter: its policies, and the settings outside of policies.

use std::{collections::HashMap, sync::Arc};

use super::{Build, with};
use crate::{config::tree::path::Path, limiter::LimiterBuilder, store::Store};

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
        let (mut skip, mut only) = (document.skip.clone(), document.only.clone());
        self.fill_conditions(&root.key("skip"), &mut skip);
        self.fill_conditions(&root.key("only"), &mut only);
        builder = builder.conditions(skip, only);
        builder = with(
            builder,
            document.on_store_error,
            LimiterBuilder::on_store_error,
        );
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
