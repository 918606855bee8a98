//! The permits of in-flight limits that a decision holds.

use std::{fmt, sync::Arc};

/// Permits of in-flight limits, released when it is dropped.
pub(crate) trait PermitHandle: fmt::Debug + Send + Sync {
    /// Logs that a decision was dropped before its permits were taken over.
    fn log_unclaimed(&self);
}

/// The permits of a decision, until an admission takes them over.
#[derive(Clone, Default)]
pub(crate) struct DecisionPermit(Option<Arc<dyn PermitHandle>>);

impl DecisionPermit {
    pub(crate) fn take(&mut self) -> Option<Arc<dyn PermitHandle>> {
        self.0.take()
    }

    pub(crate) fn map(
        mut self,
        map: impl FnOnce(Arc<dyn PermitHandle>) -> Arc<dyn PermitHandle>,
    ) -> Self {
        Self(self.0.take().map(map))
    }
}

impl From<Option<Arc<dyn PermitHandle>>> for DecisionPermit {
    #[inline]
    fn from(permit: Option<Arc<dyn PermitHandle>>) -> Self {
        Self(permit)
    }
}

impl Drop for DecisionPermit {
    #[inline]
    fn drop(&mut self) {
        // A clone, or the admission of one, may hold it still.
        if let Some(permit) = &self.0
            && Arc::strong_count(permit) == 1
        {
            permit.log_unclaimed();
        }
    }
}
