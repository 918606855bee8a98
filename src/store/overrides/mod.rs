//! Overrides: what applies to one key under one policy in place of the policy's quota, as a store keeps it.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::SystemTime};

use crate::{
    clock::Timestamp,
    error::{Escaped, overrides::OverrideError},
    key::Key,
    quota::Quota,
};

pub(crate) mod table;

pub use table::OverrideTable;

/// The longest note of an override, in bytes.
const MAX_NOTE_BYTES: usize = 200;

/// The longest `set_by` of an override, in bytes.
const MAX_SET_BY_BYTES: usize = 64;

/// The number of overrides that a store has at most.
pub(crate) const MAX_OVERRIDES: usize = 10_000;

/// What applies to one key under one policy in place of the policy's quota: another quota, or none. It holds until an instant,
/// or for good. Set by [`PolicyHandle::set_override`](crate::limiter::PolicyHandle::set_override).
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tollgate::{Quota, limiter::Override};
///
/// let friday = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_637_200);
/// let raised = Override::quota(Quota::requests(1_000).per_minute())
///     .until(friday)
///     .note("ticket 4711");
/// assert_eq!(raised.to_string(), "1000/min until 2027-01-22T17:00:00Z (ticket 4711)");
/// let lifted = Override::exempt();
/// assert_eq!(lifted.to_string(), "exempt");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// The quota, or that the key has no limit.
    pub limit: OverrideLimit,
    /// When it ends, by the store's clock as a wall clock; `None` for one that holds until it is removed.
    pub until: Option<SystemTime>,
    /// Why it was set: at most 200 bytes.
    pub note: Option<String>,
    /// The operator or program that has set it: at most 64 bytes. The admin API sets it to the user's name.
    pub set_by: Option<String>,
}

/// The limit of an [`Override`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverrideLimit {
    /// This quota in place of the policy's.
    Quota(Quota),
    /// None: the policy does not apply to requests of the key.
    Exempt,
}

impl Override {
    /// An override by a quota.
    pub const fn quota(quota: Quota) -> Self {
        Self::new(OverrideLimit::Quota(quota))
    }

    /// An override by which the policy does not apply to requests of the key.
    pub const fn exempt() -> Self {
        Self::new(OverrideLimit::Exempt)
    }

    const fn new(limit: OverrideLimit) -> Self {
        Self {
            limit,
            until: None,
            note: None,
            set_by: None,
        }
    }

    /// Sets when it ends, in whole microseconds. Default: it holds until it is removed.
    #[must_use]
    pub fn until(mut self, until: SystemTime) -> Self {
        self.until = Some(Timestamp::from(until).to_system_time());
        self
    }

    /// Sets why it was set: at most 200 bytes.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Sets the name of the operator or program that sets it: at most 64 bytes.
    #[must_use]
    pub fn set_by(mut self, set_by: impl Into<String>) -> Self {
        self.set_by = Some(set_by.into());
        self
    }

    /// The quota; `None` if it exempts the key.
    pub fn own_quota(&self) -> Option<Quota> {
        match self.limit {
            OverrideLimit::Quota(quota) => Some(quota),
            OverrideLimit::Exempt => None,
        }
    }

    /// When it ends, on the store's clock.
    pub(crate) fn ends_at(&self) -> Option<Timestamp> {
        self.until.map(Timestamp::from)
    }

    /// Whether it has ended at this instant.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        self.ends_at().is_some_and(|end| end <= now)
    }

    /// An error if a text is too long.
    pub(crate) fn validate(&self) -> Result<(), OverrideError> {
        for (field, text, max) in [
            ("note", &self.note, MAX_NOTE_BYTES),
            ("set_by", &self.set_by, MAX_SET_BY_BYTES),
        ] {
            let bytes = text.as_ref().map_or(0, String::len);
            if bytes > max {
                return Err(OverrideError::TooLong { field, bytes, max });
            }
        }
        Ok(())
    }
}

/// In one line, such as `1000/min until 2027-01-15T08:00:00Z (ticket 4711)`. Control characters of the note are escaped.
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limit.fmt(f)?;
        if let Some(end) = self.ends_at() {
            write!(f, " until {}", DateText(end))?;
        }
        match &self.note {
            Some(note) if !note.is_empty() => write!(f, " ({})", Escaped(note)),
            _ => Ok(()),
        }
    }
}

/// The quota's text, or `exempt`.
impl fmt::Display for OverrideLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(quota) => quota.fmt(f),
            Self::Exempt => f.write_str("exempt"),
        }
    }
}

/// An instant as a date of RFC 3339, in UTC.
pub(crate) struct DateText(pub(crate) Timestamp);

impl fmt::Display for DateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0.as_micros()) {
            Ok(at) => at.fmt(f),
            Err(_) => f.write_str("the end of time"),
        }
    }
}

/// A future of a change of an override, which returns the one before: see
/// [`StoreAdmin::set_override`](super::StoreAdmin::set_override).
pub type OverrideFuture =
    Pin<Box<dyn Future<Output = Result<Option<Override>, OverrideError>> + Send>>;

/// A future of the overrides of a store, ordered by policy and key: see
/// [`StoreAdmin::list_overrides`](super::StoreAdmin::list_overrides).
pub type OverrideListFuture =
    Pin<Box<dyn Future<Output = Result<Vec<(Arc<str>, Key, Override)>, OverrideError>> + Send>>;

/// A policy's name, and a key.
pub(crate) type PolicyKey = (Arc<str>, Key);
