//! A stand-in for an account at a provider, which says in the provider's own fields what is left of it.

use std::{fmt, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use http::Response;
use jiff::Timestamp;
use tollgate::provider::Provider;
use tonic_types::{ErrorDetails, StatusExt};

type Fields = Vec<(&'static str, String)>;

/// How a provider says what is left: the names of its fields, and their values as they are sent.
pub(crate) struct Dialect {
    name: &'static str,
    /// Its limit is counted by the policy `calls`.
    pub(crate) provider: fn() -> Provider,
    /// A time is sent in whole units of so much, rounded up.
    unit: Duration,
    /// The fields of each response: of the limit, what is left of it, and the time until the window ends.
    report: fn(u64, u64, Duration) -> Fields,
    /// The status of a refusal, and its further fields, of the time until the window ends.
    refusal: (u16, fn(Duration) -> Fields),
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

pub(crate) static DIALECTS: [Dialect; 7] = [
    Dialect {
        name: "OpenAI",
        provider: || Provider::openai().limit("requests", "calls"),
        unit: SECOND,
        report: openai,
        refusal: (429, retry_after),
    },
    AZURE,
    Dialect {
        name: "Anthropic",
        provider: || Provider::anthropic().limit("requests", "calls"),
        unit: SECOND,
        report: |limit, left, ends_in| {
            vec![
                date(),
                ("anthropic-ratelimit-requests-limit", limit.to_string()),
                ("anthropic-ratelimit-requests-remaining", left.to_string()),
                (
                    "anthropic-ratelimit-requests-reset",
                    at(ends_in).to_string(),
                ),
            ]
        },
        refusal: (429, retry_after),
    },
    Dialect {
        name: "a plan of Anthropic",
        provider: Provider::anthropic,
        unit: SECOND,
        report: |limit, left, ends_in| {
            let used = (limit - left) as f64 / limit as f64;
            vec![
                date(),
                (
                    "anthropic-ratelimit-unified-5h-utilization",
                    used.to_string(),
                ),
                (
                    "anthropic-ratelimit-unified-5h-reset",
                    at(ends_in).as_second().to_string(),
                ),
            ]
        },
        refusal: (429, |ends_in| {
            vec![
                ("anthropic-ratelimit-unified-status", "rejected".into()),
                (
                    "anthropic-ratelimit-unified-reset",
                    at(ends_in).as_second().to_string(),
                ),
            ]
        }),
    },
    Dialect {
        name: "GitHub",
        provider: || Provider::github().limit("core", "calls"),
        unit: SECOND,
        report: |limit, left, ends_in| {
            vec![
                date(),
                ("x-ratelimit-limit", limit.to_string()),
                ("x-ratelimit-remaining", left.to_string()),
                ("x-ratelimit-used", (limit - left).to_string()),
                ("x-ratelimit-resource", "core".into()),
                ("x-ratelimit-reset", at(ends_in).as_second().to_string()),
            ]
        },
        refusal: (403, |_| Fields::new()),
    },
    Dialect {
        name: "the drafts of the IETF",
        provider: || Provider::standard().limit("default", "calls"),
        unit: SECOND,
        report: |_, left, ends_in| {
            let seconds = ends_in.as_secs();
            vec![("ratelimit", format!("\"default\";r={left};t={seconds}"))]
        },
        refusal: (429, retry_after),
    },
    Dialect {
        name: "gRPC",
        provider: Provider::grpc,
        unit: MILLISECOND,
        report: |_, _, _| Fields::new(),
        refusal: (200, |ends_in| {
            let info = ErrorDetails::with_retry_info(Some(ends_in));
            let status =
                tonic::Status::with_error_details(tonic::Code::ResourceExhausted, "", info);
            let details = BASE64_STANDARD_NO_PAD.encode(status.details());
            vec![
                ("grpc-status", "8".into()),
                ("grpc-status-details-bin", details),
            ]
        }),
    },
];

/// The fields of OpenAI, and the time of a refusal to the millisecond.
pub(crate) const AZURE: Dialect = Dialect {
    name: "Azure OpenAI",
    provider: || Provider::azure_openai().limit("requests", "calls"),
    unit: MILLISECOND,
    report: openai,
    refusal: (429, |ends_in| {
        vec![("retry-after-ms", ends_in.as_millis().to_string())]
    }),
};

fn openai(limit: u64, left: u64, ends_in: Duration) -> Fields {
    // Durations of Go: `12ms`, `1s`, `6m0s`.
    let (minutes, seconds) = (ends_in.as_secs() / 60, ends_in.as_secs_f64() % 60.0);
    let reset = match (minutes, ends_in.as_secs()) {
        (0, 0) => format!("{}ms", ends_in.as_millis()),
        (0, _) => format!("{seconds}s"),
        _ => format!("{minutes}m{seconds}s"),
    };
    vec![
        ("x-ratelimit-limit-requests", limit.to_string()),
        ("x-ratelimit-remaining-requests", left.to_string()),
        ("x-ratelimit-reset-requests", reset),
    ]
}

fn retry_after(ends_in: Duration) -> Fields {
    vec![("retry-after", ends_in.as_secs().to_string())]
}

/// When each response is made by its provider's clock.
const MADE_AT: Timestamp = Timestamp::constant(1_750_000_000, 0);

fn date() -> (&'static str, String) {
    ("date", "Sun, 15 Jun 2025 15:06:40 GMT".into())
}

fn at(ends_in: Duration) -> Timestamp {
    MADE_AT + ends_in
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
        let mut further = Fields::new();
        if refused {
            self.refused += 1;
            response = response.status(status).extension(RefusedFor(told));
            further = refusal(told);
        } else {
            self.window.1 += 1;
            self.answered += 1;
        }
        let report = (self.dialect.report)(self.limit, self.limit - self.window.1, told);
        for (name, value) in report.into_iter().chain(further) {
            response = response.header(name, value);
        }
        response.body(()).expect("a response")
    }
}
