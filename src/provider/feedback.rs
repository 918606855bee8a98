//! What a response says, in the same form for all providers.

use std::{borrow::Cow, time::Duration};

/// More limits than any provider reports. The bound keeps the work linear in the bytes of a response.
const MAX_LIMITS: usize = 32;
const MAX_UNREAD: usize = 16;
/// Bytes of a limit's name.
const MAX_NAME_BYTES: usize = 64;
/// Characters of an [`Unread`]'s field and value.
const MAX_UNREAD_CHARS: usize = 64;

/// What a response says about the provider's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Feedback {
    /// That the call was refused; `None` if it was not.
    pub refusal: Option<Refusal>,
    /// The limits, each name once: of several values the smallest limit and remainder and the latest end of a window. At most 32.
    pub limits: Vec<ReportedLimit>,
    /// Fields that could not be read, at most 16.
    pub unread: Vec<Unread>,
}

/// The call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The time that the response names, never zero. `None` if it names none:
    /// [`Provider::block_time`](super::Provider::block_time) then finds one.
    pub retry_after: Option<Duration>,
    /// The field that the time is from, or else the field or status that refuses the call, such as `status 429`.
    pub field: Cow<'static, str>,
}

/// One of the provider's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportedLimit {
    /// The provider's name, such as `requests` or `tokens`.
    pub name: Cow<'static, str>,
    /// The units of the limit when all are there.
    pub limit: Option<u64>,
    /// The units that are left, rounded down.
    pub remaining: Option<u64>,
    /// The time from the response on until the window ends, before which no unit comes back. At most 366 days. `None` for a
    /// bucket, which refills bit by bit.
    pub window_end: Option<Duration>,
}

/// A field that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    field: Cow<'static, str>,
    value: String,
}

impl Refusal {
    /// A refusal without a time, caused by this field or status.
    pub fn new(field: impl Into<Cow<'static, str>>) -> Self {
        Self {
            retry_after: None,
            field: field.into(),
        }
    }

    /// Sets the time; zero is none.
    #[must_use]
    pub fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time).filter(|time| !time.is_zero());
        self
    }
}

impl ReportedLimit {
    /// A limit of which only the name is known.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: name.into(),
            limit: None,
            remaining: None,
            window_end: None,
        }
    }

    pub(super) fn merge_limit(&mut self, limit: u64) {
        self.limit = Some(self.limit.map_or(limit, |other| other.min(limit)));
    }

    pub(super) fn merge_remaining(&mut self, remaining: u64) {
        self.remaining = Some(
            self.remaining
                .map_or(remaining, |other| other.min(remaining)),
        );
    }

    pub(super) fn merge_window_end(&mut self, time: Duration) {
        self.window_end = self.window_end.max(Some(time));
    }

    /// The time until the window ends, if nothing is left of it.
    pub(super) fn exhausted_until(&self) -> Option<Duration> {
        self.window_end.filter(|_| self.remaining == Some(0))
    }
}

impl Unread {
    /// A field and its value. Both are shortened to at most 64 characters, and all but visible ASCII and spaces is escaped.
    pub fn new(field: &str, value: impl AsRef<[u8]>) -> Self {
        Self {
            field: shortened(field.as_bytes()).into(),
            value: shortened(value.as_ref()),
        }
    }

    /// The name of the field, or `body`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The value, at most 64 characters.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl Feedback {
    /// The limit of this name, which is added if it is missing. `None` if the name is not one, or there are too many.
    pub(super) fn limit_mut(&mut self, name: &str) -> Option<&mut ReportedLimit> {
        let plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(plain) {
            return None;
        }
        let index = match self.limits.iter().position(|limit| limit.name == name) {
            Some(index) => index,
            None if self.limits.len() < MAX_LIMITS => {
                self.limits.push(ReportedLimit::new(name.to_owned()));
                self.limits.len() - 1
            }
            None => return None,
        };
        self.limits.get_mut(index)
    }

    pub(super) fn add_unread(&mut self, field: &str, value: impl AsRef<[u8]>) {
        if self.unread.len() < MAX_UNREAD {
            self.unread.push(Unread::new(field, value));
        }
    }
}

/// At most 64 characters, of which the last one shows that some were left out.
fn shortened(value: &[u8]) -> String {
    let mut text = String::new();
    for byte in value {
        let escaped = byte.escape_ascii();
        if text.len() + escaped.len() >= MAX_UNREAD_CHARS {
            text.push('…');
            break;
        }
        text.extend(escaped.map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_values_the_strictest_counts() {
        let mut limit = ReportedLimit::new("requests");
        for (remaining, seconds) in [(3, 10), (1, 20), (2, 5)] {
            limit.merge_limit(remaining + 10);
            limit.merge_remaining(remaining);
            limit.merge_window_end(Duration::from_secs(seconds));
        }
        assert_eq!((limit.limit, limit.remaining), (Some(11), Some(1)));
        assert_eq!(limit.window_end, Some(Duration::from_secs(20)));
    }
}
