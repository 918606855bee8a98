//! The fields that tell a client how it stands with the policies: which ones, and in which dialect.

use std::time::Duration;

use http::{HeaderName, header::RETRY_AFTER};

use crate::random::random_u64;

pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Fields of one value each: the limit, what remains of it, and when there is more.
type Triple = [HeaderName; 3];

pub(crate) const DRAFT_06: Triple = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
pub(crate) const X_RATELIMIT: Triple = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Every field that a layer may add, in any dialect: what a page of another origin can read only if it is exposed
/// (`Access-Control-Expose-Headers`). The list may grow.
///
/// ```
/// use tower_http::cors::CorsLayer;
///
/// let cors = CorsLayer::permissive().expose_headers(tollgate::exposed_headers());
/// ```
pub fn exposed_headers() -> Vec<HeaderName> {
    let lists = [RETRY_AFTER, POLICY, LIMIT];
    lists
        .into_iter()
        .chain(DRAFT_06)
        .chain(X_RATELIMIT)
        .collect()
}

/// Which fields of a response say how its client stands. The current draft's, unless set.
///
/// `Retry-After` (RFC 9110, 10.2.3) is none of them: it is on every rejection that waiting helps against.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::{Policy, Quota, RateLimitHeaders, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
///     .build()?
///     .headers(RateLimitHeaders::x_ratelimit().jitter(Duration::from_secs(3)));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// What is there already is left alone, such as the fields of an upstream that a proxy passes on: lists grow by lines
/// of their own, and three fields of one value each are not added where one of them is. Where layers are stacked, their
/// lists are one, and of fields of one value each the closest policy of all layers has its say.
///
/// While a store fails, fields under [`LocalFallback`](crate::LocalFallback) are those of this process's share: a quota of 100
/// shared by two processes is `q=50`. A client that configures itself by the fields follows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimitHeaders {
    pub(crate) dialect: Dialect,
    pub(crate) closest: bool,
    jitter: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    #[default]
    Draft,
    Draft06,
    Seconds,
    Epoch,
    None,
}

impl RateLimitHeaders {
    const fn of(dialect: Dialect) -> Self {
        Self {
            dialect,
            closest: false,
            jitter: Duration::ZERO,
        }
    }

    /// `RateLimit` and `RateLimit-Policy` as draft-ietf-httpapi-ratelimit-headers-11 has them, structured fields (RFC
    /// 9651): `"burst";r=3;t=1` and `"burst";q=10;w=1`.
    ///
    /// `q` is the quota, and `r` what is left of its burst, which may be more: the draft has no field for a burst.
    ///
    /// `t` is the time, in whole seconds, within which a client can use no more than `r` (section 4.1.2):
    ///
    /// - while units remain, the end of the window under [`FixedWindow`](crate::FixedWindow),
    ///   [`CalendarWindow`](crate::CalendarWindow) and [`ListWindow`](crate::ListWindow), and the time in which the quota lets
    ///   `r` units pass, `r x period / requests`, under the others: a client that spreads `r` units over `t` seconds and looks
    ///   again keeps the rate of the policy;
    /// - with none left, the wait, which is never later than `Retry-After`.
    pub const fn draft_11() -> Self {
        Self::of(Dialect::Draft)
    }

    /// The newest published version of that draft: [`draft_11`](Self::draft_11), until a release that says otherwise and is
    /// marked as breaking.
    pub const fn draft() -> Self {
        Self::draft_11()
    }

    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` (seconds to go) of that draft's version 06, for the
    /// closest policy; and `RateLimit-Policy`, which lists the quotas of all: `10;w=1, 5000;w=86400`.
    pub const fn draft_06() -> Self {
        Self::of(Dialect::Draft06)
    }

    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` for the closest policy. The last is how many
    /// seconds it takes until the full quota is available, rounded up; when to retry is in `Retry-After`.
    pub const fn x_ratelimit() -> Self {
        Self::of(Dialect::Seconds)
    }

    /// The same with `X-RateLimit-Reset` in seconds since the Unix epoch, by the store's clock, as GitHub has it: when the
    /// full quota is available.
    pub const fn x_ratelimit_epoch() -> Self {
        Self::of(Dialect::Epoch)
    }

    /// No fields.
    pub const fn none() -> Self {
        Self::of(Dialect::None)
    }

    /// Describes only the closest policy, in place of all that applied: the one with the longest wait of those that
    /// rejected, or else the one under which the fewest further requests of the same cost would pass.
    #[must_use]
    pub const fn closest(mut self) -> Self {
        self.closest = true;
        self
    }

    /// Adds a random time of up to `most` to the wait of each rejection, so that clients don't all come back at once: to
    /// `Retry-After`, to the time at which the policies that rejected have more, and to gRPC's delays. No wait is
    /// shortened, so a client that waits that long is admitted.
    #[must_use]
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Whether there is nothing to tell those who were let in.
    pub(crate) const fn are_none(&self) -> bool {
        matches!(self.dialect, Dialect::None)
    }

    /// How long one refusal is put off, in whole milliseconds.
    pub(crate) fn draw(&self) -> Duration {
        let most = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        if most == 0 {
            return Duration::ZERO;
        }
        let random = random_u64();
        Duration::from_millis(match most.checked_add(1) {
            Some(choices) => random % choices,
            None => random,
        })
    }
}
