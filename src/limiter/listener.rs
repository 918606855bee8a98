//! What charges and permits report: their only call to what lies above them.

use crate::{
    key::Key,
    observe::{Event, UnitsEvent},
};

/// Receives what happens to the units of requests after they were decided.
pub(crate) trait AdjustListener: Send + Sync {
    /// Units were charged, refunded or settled.
    fn on_units(&self, event: &UnitsEvent<'_>);

    /// Permits were held or released, or a ban began.
    fn on_event(&self, event: &Event<'_>);

    /// Units of a key are given back, or soon will be: a refund may still be on its way to the store.
    fn released(&self, policy: &str, key: &Key);
}
