use crate::key::Key;

/// Who is asking, for each policy: one [`Key`] for all, or pairs of a policy's name and its key.
#[derive(Clone, Debug)]
pub struct Keys(Who);

#[derive(Clone, Debug)]
enum Who {
    All(Key),
    Each(Vec<(String, Key)>),
}

impl Keys {
    pub(super) fn of(&self, policy: &str) -> Option<Key> {
        match &self.0 {
            Who::All(key) => Some(*key),
            Who::Each(keys) => keys
                .iter()
                .find(|(name, _)| name == policy)
                .map(|(_, key)| *key),
        }
    }

    /// A name that no policy has is a slip of the pen, and its key would silently not be counted.
    pub(super) fn warn_of_strangers(&self, known: impl Fn(&str) -> bool) {
        if let Who::Each(keys) = &self.0 {
            for (name, _) in keys.iter().filter(|(name, _)| !known(name)) {
                tracing::error!(
                    policy = name,
                    "a key for a policy that the limiter doesn't have"
                );
            }
        }
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Self {
        Self(Who::All(key))
    }
}

impl<S: Into<String>> From<Vec<(S, Key)>> for Keys {
    fn from(keys: Vec<(S, Key)>) -> Self {
        keys.into_iter().collect()
    }
}

impl<S: Into<String>, const N: usize> From<[(S, Key); N]> for Keys {
    fn from(keys: [(S, Key); N]) -> Self {
        keys.into_iter().collect()
    }
}

impl<S: Into<String>> FromIterator<(S, Key)> for Keys {
    fn from_iter<I: IntoIterator<Item = (S, Key)>>(keys: I) -> Self {
        let keys = keys.into_iter().map(|(name, key)| (name.into(), key));
        Self(Who::Each(keys.collect()))
    }
}
