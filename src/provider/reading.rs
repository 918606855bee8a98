//! The fields of one response, and what was read from them so far.

use std::{borrow::Cow, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{AGE, DATE, RETRY_AFTER},
};

use super::{
    feedback::{Feedback, Refusal},
    text::{Instant, millis, seconds, units},
};

const RETRY_AFTER_MS: &str = "retry-after-ms";

/// What the units of a field are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Limit,
    Remaining,
}

pub(super) struct Reading<'a> {
    pub(super) headers: &'a HeaderMap,
    /// The provider's clock, if it sends its time.
    pub(super) now: Instant,
    /// How long ago the response was made: a cache has kept it for that long.
    age: Duration,
    pub(super) feedback: Feedback,
}

impl<'a> Reading<'a> {
    pub(super) fn new(headers: &'a HeaderMap) -> Self {
        let date = headers.get(DATE).and_then(text);
        let date = date.and_then(Instant::parse_http_date);
        // Of a list the first member counts (RFC 9111, 5.1).
        let age = headers.get(AGE).and_then(text);
        let age = age.and_then(|list| seconds(list.split(',').next()?));
        let age = age.unwrap_or_default();
        Self {
            headers,
            now: date.map_or_else(Instant::now, |date| date.after(age)),
            age,
            feedback: Feedback::default(),
        }
    }

    /// What was read. The limits of a response that a cache kept are those of another moment, and perhaps of another caller.
    pub(super) fn into_feedback(mut self) -> Feedback {
        if !self.age.is_zero() {
            self.feedback.limits.clear();
        }
        self.feedback
    }

    /// What is left of a time that the response names, which began when it was made.
    pub(super) fn left(&self, time: Duration) -> Duration {
        time.saturating_sub(self.age)
    }

    /// Reads a value as units of the limit `name`.
    pub(super) fn read_units(
        &mut self,
        name: &str,
        part: Part,
        (field, value): (&HeaderName, &HeaderValue),
    ) {
        let units = text(value).and_then(units);
        match units.and_then(|units| Some((self.feedback.limit_mut(name)?, units))) {
            Some((limit, units)) => match part {
                Part::Limit => limit.merge_limit(units),
                Part::Remaining => limit.merge_remaining(units),
            },
            None => self.feedback.add_unread(field.as_str(), value),
        }
    }

    /// Reads all values of a field as units of the limit `name`.
    pub(super) fn read_units_of(&mut self, name: &str, part: Part, field: &HeaderName) {
        for value in self.headers.get_all(field) {
            self.read_units(name, part, (field, value));
        }
    }

    /// Reads all values of a field as ends of a window of the limit `name`.
    pub(super) fn read_window_ends(
        &mut self,
        name: &str,
        field: &HeaderName,
        parse: fn(&str, Instant) -> Option<Duration>,
    ) {
        for value in self.headers.get_all(field) {
            let time = text(value).and_then(|text| parse(text, self.now));
            match time.and_then(|time| Some((self.feedback.limit_mut(name)?, time))) {
                Some((limit, time)) => limit.merge_window_end(time),
                None => self.feedback.add_unread(field.as_str(), value),
            }
        }
    }

    /// The longest time that a field names. Zero is none; unreadable values are reported.
    pub(super) fn longest(
        &mut self,
        field: &str,
        parse: impl Fn(&str, &Self) -> Option<Duration>,
    ) -> Option<Duration> {
        let mut longest = Duration::ZERO;
        for value in self.headers.get_all(field) {
            match text(value).and_then(|text| parse(text, self)) {
                Some(time) => longest = longest.max(time),
                None => self.feedback.add_unread(field, value),
            }
        }
        (!longest.is_zero()).then_some(longest)
    }

    /// Whether there is a time to retry after, readable or not.
    pub(super) fn has_retry_after(&self) -> bool {
        self.headers.contains_key(RETRY_AFTER) || self.headers.contains_key(RETRY_AFTER_MS)
    }

    /// The status, if by it the call is refused in any dialect of HTTP.
    pub(super) fn refusing_status(&self, status: StatusCode) -> Option<Cow<'static, str>> {
        let refused = match status {
            StatusCode::TOO_MANY_REQUESTS => true,
            StatusCode::SERVICE_UNAVAILABLE => self.has_retry_after(),
            _ => false,
        };
        refused.then(|| status_text(status))
    }

    /// Reports a refusal by `cause`, after the time that the fields name.
    pub(super) fn refuse(&mut self, cause: impl Into<Cow<'static, str>>) {
        self.feedback.refusal = Some(match self.retry_after() {
            Some((field, time)) => Refusal::new(field).retry_after(time),
            None => Refusal::new(cause),
        });
    }

    /// The time to retry after, and its field.
    pub(super) fn retry_after(&mut self) -> Option<(&'static str, Duration)> {
        let parse_millis = |text: &str, reading: &Self| Some(reading.left(millis(text)?));
        match self.longest(RETRY_AFTER_MS, parse_millis) {
            Some(time) => Some((RETRY_AFTER_MS, time)),
            None => {
                let time = self.longest(RETRY_AFTER.as_str(), parse_retry_after)?;
                Some(("retry-after", time))
            }
        }
    }
}

/// `status 429`.
pub(super) fn status_text(status: StatusCode) -> Cow<'static, str> {
    match status {
        StatusCode::TOO_MANY_REQUESTS => "status 429".into(),
        _ => format!("status {}", status.as_u16()).into(),
    }
}

/// Seconds, or a date of HTTP.
fn parse_retry_after(text: &str, reading: &Reading<'_>) -> Option<Duration> {
    match seconds(text) {
        Some(time) => Some(reading.left(time)),
        None => Some(Instant::parse_http_date(text)?.from(reading.now)),
    }
}

/// The time until an instant in Unix seconds.
pub(super) fn parse_unix(text: &str, now: Instant) -> Option<Duration> {
    Some(Instant::parse_unix(text)?.from(now))
}

/// The value, if it is visible ASCII.
pub(super) fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}
