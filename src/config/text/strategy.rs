//! Parses the texts of strategies, such as `sliding_window buckets 10`.

use std::{sync::Arc, time::Duration};

use super::{
    parse_duration,
    scan::{Scanner, Token},
};
use crate::{
    Ban, CalendarWindow, Concurrency, FixedWindow, Gcra, ListWindow, SlidingLog, SlidingWindow,
    TokenBucket,
    config::{
        Registry,
        names::{self, BUILT_IN_STRATEGIES, CODE},
    },
    error::InvalidValue,
    strategy::{Strategy, Weekday},
};

/// Parses the text of a strategy: a built-in one with its settings, or a registered name.
pub(crate) fn parse_strategy(
    text: &str,
    registry: &Registry,
) -> Result<Arc<dyn Strategy>, InvalidValue> {
    let mut parser = Parser {
        text,
        tokens: Scanner::new(text),
    };
    let Some(name) = parser.tokens.peek_word() else {
        return Err(parser.unexpected("a strategy such as gcra"));
    };
    parser.tokens.take();
    let strategy: Arc<dyn Strategy> = match name {
        "gcra" => Arc::new(Gcra),
        "token_bucket" => Arc::new(TokenBucket),
        "fixed_window" => Arc::new(FixedWindow),
        "list_window" => Arc::new(ListWindow),
        "sliding_log" => Arc::new(SlidingLog),
        "sliding_window" => Arc::new(parser.sliding_window()?),
        "calendar_window" => Arc::new(parser.calendar_window()?),
        "concurrency" => Arc::new(match parser.tokens.take_word("ttl") {
            true => Concurrency::with_ttl(parser.duration("ttl 30s")?),
            false => Concurrency::new(),
        }),
        "ban" => {
            let ban = Ban::for_duration(parser.duration("ban 10min max 1day")?);
            Arc::new(match parser.tokens.take_word("max") {
                true => ban.max_duration(parser.duration("max 1day")?),
                false => ban,
            })
        }
        CODE => return Err(names::unnamed_code("strategy")),
        name => registry.find_strategy(name).ok_or_else(|| {
            names::unknown(
                "strategy",
                name,
                &BUILT_IN_STRATEGIES,
                registry.strategy_names(),
            )
        })?,
    };
    match parser.tokens.peek() {
        Token::End => Ok(strategy),
        _ => Err(parser.unexpected(match name {
            "sliding_window" => "nothing more, or a number of buckets: sliding_window buckets 10",
            "calendar_window" => {
                "utc, east_of_utc 2h, west_of_utc 5h or zone Europe/Berlin, and week_starts_on sunday"
            }
            "concurrency" => "nothing more, or a permit TTL: concurrency ttl 30s",
            "ban" => "nothing more, or the longest ban: ban 10min max 1day",
            _ => "nothing more: this strategy has no settings",
        })),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Scanner<'a>,
}

impl Parser<'_> {
    fn sliding_window(&mut self) -> Result<SlidingWindow, InvalidValue> {
        if !self.tokens.take_word("buckets") {
            return Ok(SlidingWindow::new());
        }
        let number = self.tokens.peek_word().and_then(|word| word.parse().ok());
        let Some(buckets) = number.filter(|buckets| *buckets > 0) else {
            return Err(self.unexpected("a number of buckets from 1 to 100"));
        };
        self.tokens.take();
        Ok(SlidingWindow::buckets(buckets))
    }

    fn calendar_window(&mut self) -> Result<CalendarWindow, InvalidValue> {
        let window = if self.tokens.take_word("zone") {
            let Some(zone) = self.tokens.peek_word() else {
                return Err(self.unexpected("a time zone such as zone Europe/Berlin"));
            };
            self.tokens.take();
            CalendarWindow::zone(zone)
        } else if self.tokens.take_word("east_of_utc") {
            CalendarWindow::east_of_utc(self.duration("east_of_utc 2h")?)
        } else if self.tokens.take_word("west_of_utc") {
            CalendarWindow::west_of_utc(self.duration("west_of_utc 5h")?)
        } else {
            self.tokens.take_word("utc");
            CalendarWindow::utc()
        };
        if !self.tokens.take_word("week_starts_on") {
            return Ok(window);
        }
        let name = self.tokens.peek_word().unwrap_or_default();
        let Some(day) = Weekday::ALL.into_iter().find(|day| day.name() == name) else {
            return Err(self.unexpected("a day such as week_starts_on sunday"));
        };
        self.tokens.take();
        Ok(window.week_starts_on(day))
    }

    fn duration(&mut self, example: &str) -> Result<Duration, InvalidValue> {
        let Some(text) = self.tokens.peek_word() else {
            return Err(self.unexpected(&format!("a duration, such as {example}")));
        };
        let duration = parse_duration(text)?;
        self.tokens.take();
        Ok(duration)
    }

    fn unexpected(&self, expected: &str) -> InvalidValue {
        let value = format!("{} in the strategy {:?}", self.tokens.peek(), self.text);
        InvalidValue::new(value, expected)
    }
}
