//! The settings of a layer, which can be replaced while it serves requests.

use std::sync::{Arc, Mutex};

use super::snapshot::SettingsSnapshot;
use crate::{
    limiter::{Limiter, LimiterRefs},
    respond::LayerSettings,
    sync::{
        CachePadded, Replaceable, ReplaceableValue, ReplacedFlag, ShardedArc, lock,
        replaceable_value,
    },
};

/// What the clones of a layer and its services share: the limiter, and the settings in force.
#[derive(Debug)]
pub(crate) struct LayerShared {
    limiter: Limiter,
    current: Replaceable<SettingsSnapshot>,
    /// Held while `current` is replaced.
    replacing: Mutex<()>,
}

/// A reference to what a layer shares. There are several, each on cache lines of its own, of which each thread uses one, so that
/// counting the references to it causes no contention between threads.
#[derive(Debug)]
pub(crate) struct LayerHandle(CachePadded<Arc<LayerShared>>);

/// A service's reference to what its layer shares. The service that the layer makes has the handles of all threads; its
/// clones, which routers make for each request, have that of the thread that cloned them.
#[derive(Debug)]
pub(crate) enum LayerRef {
    All(Arc<ShardedArc<LayerHandle>>),
    Local(Arc<LayerHandle>),
}

impl LayerShared {
    /// Handles of what a layer shares.
    pub(crate) fn open(limiter: Limiter, settings: LayerSettings) -> ShardedArc<LayerHandle> {
        let current = Replaceable::new(snapshots(&limiter.refs(), &settings));
        let shared = Arc::new(Self {
            limiter,
            current,
            replacing: Mutex::default(),
        });
        ShardedArc::new(|| LayerHandle(CachePadded::new(shared.clone())))
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(crate) fn settings(&self) -> LayerSettings {
        self.current.all().first().settings.clone()
    }

    /// The settings in force, with the policies in force.
    #[inline]
    pub(crate) fn current(&self) -> Arc<SettingsSnapshot> {
        let snapshot = self.current.local();
        if snapshot.limiter.replaced_flag().is_set() {
            self.with_new_policies()
        } else {
            snapshot
        }
    }

    /// The same settings with the limiter's new policies.
    #[cold]
    fn with_new_policies(&self) -> Arc<SettingsSnapshot> {
        let replacing = lock(&self.replacing);
        let last = self.current.all();
        // Another thread may have been here first.
        if last.first().limiter.replaced_flag().is_set() {
            let refs = self.limiter.refs();
            self.current
                .replace(snapshots(&refs, &last.first().settings));
        }
        drop(replacing);
        self.current.local()
    }

    /// Replaces the settings together with the policies.
    pub(crate) fn replace(&self, policies: &LimiterRefs, settings: &LayerSettings) {
        let _replacing = lock(&self.replacing);
        self.current.replace(snapshots(policies, settings));
    }
}

fn snapshots(policies: &LimiterRefs, settings: &LayerSettings) -> ShardedArc<SettingsSnapshot> {
    policies.map(|limiter| SettingsSnapshot {
        limiter: CachePadded::new(limiter.clone()),
        settings: settings.clone(),
        replaced: ReplacedFlag::default(),
    })
}

replaceable_value!(SettingsSnapshot, replaced);

impl LayerHandle {
    #[inline]
    pub(crate) fn shared(&self) -> &LayerShared {
        &self.0
    }
}

impl LayerRef {
    /// The settings in force.
    #[inline]
    pub(crate) fn current(&self) -> Arc<SettingsSnapshot> {
        self.handle().shared().current()
    }

    #[inline]
    fn handle(&self) -> &Arc<LayerHandle> {
        match self {
            Self::All(handles) => handles.local(),
            Self::Local(handle) => handle,
        }
    }
}

impl Clone for LayerRef {
    fn clone(&self) -> Self {
        Self::Local(self.handle().clone())
    }
}
