//! A stand-in for an account at a provider, which says in the provider's own fields what is left of it.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use jiff::Timestamp;
use tollgate::provider::Provider;
use tollgate_tests::prelude::{Duration, Response, ms, secs};
use tonic_types::{ErrorDetails, StatusExt};

/// How a provider says what is left: the fields of its responses, one a line, as they are sent.
pub(crate) struct Dialect {
    name: &'static str,
    /// Its limit is counted by the policy `calls`.
    pub(crate) provider: fn() -> Provider,
    /// A time is sent in whole units of so much, rounded up.
    unit: Duration,
    /// The fields of each response: of the limit, what is left of it, and the time until the window ends.
    report: fn(u64, u64, Duration) -> String,
    /// The status of a refusal, and its further fields, of the time until the window ends.
    refusal: (u16, fn(Duration) -> String),
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

pub(crate) static DIALECTS: [Dialect; 5] = [
    Dialect {
        name: "OpenAI",
        provider: || Provider::openai().limit("requests", "calls"),
        unit: secs(1),
        report: openai,
        refusal: (429, retry_after),
    },
    Dialect {
        name: "Azure OpenAI",
        provider: || Provider::azure_openai().limit("requests", "calls"),
        unit: ms(1),
        report: openai,
        refusal: (429, |ends_in| {
            format!("retry-after-ms: {}", ends_in.as_millis())
        }),
    },
    Dialect {
        name: "Anthropic",
        provider: || Provider::anthropic().limit("requests", "calls"),
        unit: secs(1),
        report: |limit, left, ends_in| {
            let reset = at(ends_in);
            format!(
                "{DATE}
                 anthropic-ratelimit-requests-limit: {limit}
                 anthropic-ratelimit-requests-remaining: {left}
                 anthropic-ratelimit-requests-reset: {reset}"
            )
        },
        refusal: (429, retry_after),
    },
    Dialect {
        name: "GitHub",
        provider: || Provider::github().limit("core", "calls"),
        unit: secs(1),
        report: |limit, left, ends_in| {
            let (used, reset) = (limit - left, at(ends_in).as_second());
            format!(
                "{DATE}
                 x-ratelimit-limit: {limit}
                 x-ratelimit-remaining: {left}
                 x-ratelimit-used: {used}
                 x-ratelimit-resource: core
                 x-ratelimit-reset: {reset}"
            )
        },
        refusal: (403, |_| String::new()),
    },
    Dialect {
        name: "gRPC",
        provider: Provider::grpc,
        unit: ms(1),
        report: |_, _, _| String::new(),
        refusal: (200, |ends_in| {
            let info = ErrorDetails::with_retry_info(Some(ends_in));
            let exhausted = tonic::Code::ResourceExhausted;
            let status = tonic::Status::with_error_details(exhausted, "", info);
            let details = BASE64_STANDARD_NO_PAD.encode(status.details());
            format!("grpc-status: 8\ngrpc-status-details-bin: {details}")
        }),
    },
];

fn openai(limit: u64, left: u64, ends_in: Duration) -> String {
    // Durations of Go: `12ms`, `1s`, `6m0s`.
    let (minutes, seconds) = (ends_in.as_secs() / 60, ends_in.as_secs_f64() % 60.0);
    let reset = match (minutes, ends_in.as_secs()) {
        (0, 0) => format!("{}ms", ends_in.as_millis()),
        (0, _) => format!("{seconds}s"),
        _ => format!("{minutes}m{seconds}s"),
    };
    format!(
        "x-ratelimit-limit-requests: {limit}
         x-ratelimit-remaining-requests: {left}
         x-ratelimit-reset-requests: {reset}"
    )
}

fn retry_after(ends_in: Duration) -> String {
    format!("retry-after: {}", ends_in.as_secs())
}

/// When each response is made by its provider's clock.
const DATE: &str = "date: Sun, 15 Jun 2025 15:06:40 GMT";

/// The end by that clock.
fn at(ends_in: Duration) -> Timestamp {
    Timestamp::constant(1_750_000_000, 0) + ends_in
}

/// An account that has so many calls in each period.
#[derive(Debug)]
pub(crate) struct Account {
    dialect: &'static Dialect,
    limit: u64,
    period: Duration,
    /// The window, by its number, and what was answered in it.
    window: (u128, u64),
    pub(crate) answered: u64,
    pub(crate) refused: u64,
}

/// For how long a response refuses calls, from the moment at which it was made on: among its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedFor(pub(crate) Duration);

impl Account {
    pub(crate) fn new(dialect: &'static Dialect, limit: u64, period: Duration) -> Self {
        Self {
            dialect,
            limit,
            period,
            window: (0, 0),
            answered: 0,
            refused: 0,
        }
    }

    /// The response to a call that arrives so long after the account's first window has begun.
    pub(crate) fn respond(&mut self, now: Duration) -> Response<()> {
        let window = now.as_micros() / self.period.as_micros();
        if window != self.window.0 {
            self.window = (window, 0);
        }
        let refused = self.window.1 >= self.limit;
        let ends_in = self.period * (window as u32 + 1) - now;
        let unit = self.dialect.unit;
        let told = unit * ends_in.as_nanos().div_ceil(unit.as_nanos()) as u32;
        let mut response = Response::builder();
        let (status, refusal) = self.dialect.refusal;
        let mut further = String::new();
        if refused {
            self.refused += 1;
            response = response.status(status).extension(RefusedFor(told));
            further = refusal(told);
        } else {
            self.window.1 += 1;
            self.answered += 1;
        }
        let report = (self.dialect.report)(self.limit, self.limit - self.window.1, told);
        for line in report.lines().chain(further.lines()) {
            let (name, value) = line.trim().split_once(": ").expect(line);
            response = response.header(name, value);
        }
        response.body(()).expect("a response")
    }
}
