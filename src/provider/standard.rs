//! `RateLimit` of the IETF's drafts, and `X-RateLimit-*`.

use std::{convert::Infallible, time::Duration};

use http::{HeaderName, HeaderValue, StatusCode};
use sfv::{
    BareItemFromInput, KeyRef, Parser,
    visitor::{
        DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor,
        ParameterVisitor,
    },
};

use super::{
    reading::{Part, Reading, text},
    text::{Decimal, Instant, MAX_TIME, units},
};
use crate::headers::{LIMIT, POLICY, X_RATELIMIT};

/// The fields of the IETF's draft up to version 06.
const DRAFT_06: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];

/// The name of a limit that has none.
const UNNAMED: &str = "default";
/// A larger reset is Unix time: 2001 and later.
const MAX_SECONDS: u64 = 1_000_000_000;
/// A larger one is in milliseconds.
const MAX_UNIX_SECONDS: u64 = 1_000_000_000_000;
/// Items of a field that are read. Each is a limit, of which there are as many.
const MAX_ITEMS: usize = 32;

pub(super) fn read(reading: &mut Reading<'_>, status: StatusCode) {
    read_limits(reading);
    if let Some(cause) = reading.refusing_status(status) {
        reading.refuse(cause);
    }
}

fn read_limits(reading: &mut Reading<'_>) {
    for field in [LIMIT, POLICY] {
        for value in reading.headers.get_all(&field) {
            if read_structured(reading, value).is_none() {
                reading.feedback.add_unread(field.as_str(), value);
            }
        }
    }
    for [limit, remaining, reset] in [&DRAFT_06, &X_RATELIMIT] {
        read_limit(reading, limit);
        reading.read_units_of(UNNAMED, Part::Remaining, remaining);
        reading.read_window_ends(UNNAMED, reset, parse_reset);
    }
}

/// Reads the limit, behind which drafts up to 06 list quotas: `100, 100;w=60`.
fn read_limit(reading: &mut Reading<'_>, field: &HeaderName) {
    for value in reading.headers.get_all(field) {
        let limit = text(value).and_then(|text| {
            let is_list = text.contains(';') || text.contains(", ");
            let end = text.find([',', ';']).filter(|_| is_list);
            units(text.get(..end.unwrap_or(text.len()))?)
        });
        let unnamed = limit.and_then(|limit| Some((reading.feedback.limit_mut(UNNAMED)?, limit)));
        match unnamed {
            Some((unnamed, limit)) => unnamed.merge_limit(limit),
            None => reading.feedback.add_unread(field.as_str(), value),
        }
    }
}

/// Seconds from now on, or an instant if the number is too large for that.
fn parse_reset(text: &str, now: Instant) -> Option<Duration> {
    let number = Decimal::parse(text)?;
    Some(if number.whole <= MAX_SECONDS {
        number.seconds().min(MAX_TIME)
    } else if number.whole <= MAX_UNIX_SECONDS {
        Instant(number.seconds()).from(now)
    } else {
        Instant(number.millis()).from(now)
    })
}

/// Reads a list of named limits, `"default";q=100;r=50;t=30`, or the parts of one, `limit=100, remaining=50, reset=30`.
/// `None` if the value is neither.
fn read_structured(reading: &mut Reading<'_>, value: &HeaderValue) -> Option<()> {
    let text = text(value).filter(|text| !text.is_empty())?;
    let mut items = Items::default();
    if Parser::new(text)
        .parse_list_with_visitor(&mut items)
        .is_err()
    {
        items = Items::default();
        let parser = Parser::new(text);
        parser.parse_dictionary_with_visitor(&mut items).ok()?;
    }
    let items = items.0;
    if items.iter().any(|item| item.malformed) {
        return None;
    }
    for item in items {
        let limit = reading.feedback.limit_mut(&item.limit)?;
        if let Some(quota) = item.quota {
            limit.merge_limit(quota);
        }
        if let Some(remaining) = item.remaining {
            limit.merge_remaining(remaining);
        }
        if let Some(seconds) = item.reset {
            limit.merge_window_end(Duration::from_secs(seconds).min(MAX_TIME));
        }
    }
    Some(())
}

/// What a number of an item is.
#[derive(Clone, Copy)]
enum Number {
    Quota,
    Remaining,
    Reset,
}

/// What the members of a list or dictionary say.
#[derive(Default)]
struct Items(Vec<Item>);

#[derive(Default)]
struct Item {
    limit: String,
    /// Of a dictionary: what the member's value is.
    value: Option<Number>,
    quota: Option<u64>,
    remaining: Option<u64>,
    /// In seconds.
    reset: Option<u64>,
    malformed: bool,
}

impl Items {
    fn push(&mut self, value: Option<Number>) -> Option<&mut Item> {
        if self.0.len() == MAX_ITEMS {
            return None;
        }
        self.0.push(Item {
            limit: UNNAMED.to_owned(),
            value,
            ..Item::default()
        });
        self.0.last_mut()
    }
}

impl Item {
    fn set(&mut self, which: Number, value: &BareItemFromInput<'_>) {
        let number = match value {
            BareItemFromInput::Integer(number) => u64::try_from(*number).ok(),
            BareItemFromInput::Decimal(number) => {
                u64::try_from(i64::from(number.as_integer_scaled_1000()) / 1_000).ok()
            }
            _ => None,
        };
        self.malformed |= number.is_none();
        match which {
            Number::Quota => self.quota = number,
            Number::Remaining => self.remaining = number,
            Number::Reset => self.reset = number,
        }
    }
}

impl<'de> ListVisitor<'de> for Items {
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Infallible> {
        Ok(self.push(None))
    }
}

impl<'de> DictionaryVisitor<'de> for Items {
    type Error = Infallible;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Infallible> {
        let value = match key.as_str() {
            "limit" => Number::Quota,
            "remaining" => Number::Remaining,
            "reset" => Number::Reset,
            _ => return Ok(None),
        };
        Ok(self.push(Some(value)))
    }
}

impl<'de> ItemVisitor<'de> for &mut Item {
    type Error = Infallible;

    fn bare_item(
        self,
        value: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de>, Infallible> {
        match (self.value, &value) {
            (Some(which), value) => self.set(which, value),
            (None, BareItemFromInput::String(name)) => name.as_str().clone_into(&mut self.limit),
            (None, BareItemFromInput::Token(name)) => name.as_str().clone_into(&mut self.limit),
            // A quota without a name, in `RateLimit-Policy` of drafts up to 07: the limit is in `RateLimit` too.
            (None, BareItemFromInput::Integer(_)) => {}
            (None, _) => self.malformed = true,
        }
        Ok(self)
    }
}

impl<'de> EntryVisitor<'de> for &mut Item {
    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        self.malformed = true;
        Ok(Ignored)
    }
}

impl<'de> ParameterVisitor<'de> for &mut Item {
    type Error = Infallible;

    fn parameter(
        &mut self,
        key: &'de KeyRef,
        value: BareItemFromInput<'de>,
    ) -> Result<(), Infallible> {
        let which = match key.as_str() {
            "q" => Number::Quota,
            "r" => Number::Remaining,
            "t" => Number::Reset,
            _ => return Ok(()),
        };
        if self.value.is_none() {
            self.set(which, &value);
        }
        Ok(())
    }
}
