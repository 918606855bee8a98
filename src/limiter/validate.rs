//! Checks all settings of a builder before any of them has an effect.

use std::collections::{HashMap, HashSet};

use super::builder::LimiterBuilder;
use crate::{
    error::{ConfigError, InvalidValue},
    policy::{Policy, skip::SkipRules},
    store::Store,
};

impl<T> LimiterBuilder<T> {
    /// Reports each mistake in the settings. The first one reported is the error of [`build`](Self::build). Nothing is
    /// registered, and no running limiter is changed. `store` is the one that will count, if it is known.
    pub(crate) fn validate(&self, store: Option<&dyn Store>, report: &mut dyn FnMut(ConfigError)) {
        let in_general = |invalid| ConfigError::at("", invalid);
        if let Err(invalid) = self.on_store_error.unwrap_or_default().validate() {
            report(in_general(invalid));
        }
        let live = self.policies.iter();
        let live = live.filter(|policy| !policy.is_shadow());
        let live: HashMap<&str, &Policy> = live.map(|policy| (policy.name(), policy)).collect();
        let live_of = |policy: &Policy| live.get(policy.live_policy()?).copied();
        let mut names = HashSet::new();
        for policy in &self.policies {
            let mut report = |invalid| report(ConfigError::of(policy.name(), invalid));
            if let Err(invalid) = policy.validate_name() {
                report(invalid);
            }
            if !names.insert(policy.name()) {
                report(InvalidValue::new(
                    "a second policy of this name",
                    "a unique name for each policy of a limiter",
                ));
            }
            policy.validate(live_of(policy), store, self.on_store_error, &mut report);
        }
        for policy in &self.policies {
            if let Some(name) = policy.live_policy()
                && live_of(policy).is_none_or(Policy::is_ban)
            {
                let unfit = InvalidValue::new(
                    format!("a shadow of {name:?}"),
                    "the name of a live policy of the limiter, which is neither a shadow nor a ban",
                );
                report(ConfigError::of(policy.name(), unfit.in_field("shadow_of")));
            }
        }
        SkipRules {
            skip: &self.skip,
            only: &self.only,
        }
        .validate(&mut |invalid| report(in_general(invalid)));
        let is_policy = |name: &str| names.contains(name);
        if let Err(invalid) = self.lists.validate(is_policy) {
            report(in_general(invalid));
        }
    }
}
