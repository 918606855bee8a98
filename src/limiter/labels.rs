//! The labels of callers that were rejected: what operators read beside hashed keys.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex},
};

use http::request::Parts;

use super::{core::LimiterRef, decision::Decision};
use crate::{key::Key, policy::Policy, sync::lock};

/// How many callers have labels at most.
const MAX_LABELS: usize = 10_000;

/// The labels of the callers that were rejected last, by the policy's name and the key.
#[derive(Debug, Default)]
pub(crate) struct Labels(Mutex<Generations>);

/// The newest labels, and those before them, which are dropped when the newest are half of all.
#[derive(Debug, Default)]
struct Generations {
    newest: HashMap<Caller, Box<str>>,
    older: HashMap<Caller, Box<str>>,
}

type Caller = (Arc<str>, Key);

impl Labels {
    /// Keeps the label of a request's caller, if its key is hashed and it has one.
    pub(crate) fn record(&self, policy: &Policy, key: Key, parts: &Parts) {
        if !policy.has_labels() || !key.has_hash() {
            return;
        }
        // Code of the application, which is not called under the lock.
        if let Some(label) = policy.label(parts) {
            self.set((policy.shared_name(), key), label);
        }
    }

    fn set(&self, caller: Caller, label: Box<str>) {
        let mut labels = lock(&self.0);
        labels.newest.insert(caller, label);
        let dropped = (labels.newest.len() >= MAX_LABELS / 2).then(|| {
            let newest = mem::take(&mut labels.newest);
            mem::replace(&mut labels.older, newest)
        });
        drop(labels);
        drop(dropped);
    }

    /// The label of a caller.
    pub(crate) fn of(&self, policy: &str, key: &Key) -> Option<Box<str>> {
        let caller = (Arc::from(policy), *key);
        let labels = lock(&self.0);
        let newest = labels.newest.get(&caller);
        newest.or_else(|| labels.older.get(&caller)).cloned()
    }
}

impl LimiterRef {
    /// Keeps the labels of a request that a layer rejects, and logs it: see [`Mode::REQUEST`](super::mode::Mode::REQUEST).
    pub(crate) fn label_rejected(&self, decision: &Decision, parts: &Parts) {
        let Some(labels) = &self.labels else {
            return;
        };
        for entry in &decision.entries {
            labels.record(&self.bound(entry.policy).policy, entry.key, parts);
        }
        self.log_rejection(&decision.kind, &decision.entries);
    }

    /// The label of a caller, if it is known.
    pub(crate) fn label_of(&self, policy: &str, key: &Key) -> Option<Box<str>> {
        self.labels.as_ref()?.of(policy, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_callers_have_labels_and_no_more_than_the_bound() {
        let labels = Labels::default();
        let key = |number: usize| Key::secret(number.to_string());
        for number in 0..25_000 {
            labels.set(("p".into(), key(number)), number.to_string().into());
            let kept = lock(&labels.0);
            assert!(kept.newest.len() + kept.older.len() <= MAX_LABELS);
        }
        let known = (0..25_000).filter(|number| labels.of("p", &key(*number)).is_some());
        assert!(known.clone().count() >= MAX_LABELS / 2);
        assert!(known.min().is_some_and(|oldest| oldest >= 15_000));
        assert_eq!(labels.of("p", &key(24_999)).as_deref(), Some("24999"));
        assert_eq!(labels.of("q", &key(24_999)), None);
    }
}
