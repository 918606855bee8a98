//! Which rate-limit header fields responses have, and in which format. `respond/write.rs` writes them; `respond/delay.rs` computes
//! `Retry-After`.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, header::RETRY_AFTER};

use crate::{limiter::Decision, random::random_u64, shared_fn::SharedFn};

pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// What a CDN goes by in place of `Cache-Control` (RFC 9213), and the older form.
pub(crate) const CDN_CACHE_CONTROL: [HeaderName; 2] = [
    HeaderName::from_static("cdn-cache-control"),
    HeaderName::from_static("surrogate-control"),
];

/// Header fields of one value each: limit, remaining, reset.
type SingleValueHeaders = [HeaderName; 3];

pub(crate) const X_RATELIMIT: SingleValueHeaders = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
const fn names_of(names: [&'static str; 3]) -> SingleValueHeaders {
    let [limit, remaining, reset] = names;
    [
        HeaderName::from_static(limit),
        HeaderName::from_static(remaining),
        HeaderName::from_static(reset),
    ]
}

/// The fields of OpenAI, in the order of [`NamedPolicies::names`].
static OPENAI: [SingleValueHeaders; 2] = [
    names_of([
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    ]),
    names_of([
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ]),
];
/// The fields of Anthropic, in the order of [`NamedPolicies::names`].
static ANTHROPIC: [SingleValueHeaders; 4] = [
    names_of([
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ]),
    names_of([
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ]),
    names_of([
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
    ]),
    names_of([
        "anthropic-ratelimit-output-tokens-limit",
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset",
    ]),
];

/// The wait of a rejection in milliseconds, which the SDKs of OpenAI and Anthropic read before `Retry-After`.
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// `false` forbids these SDKs to retry.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Returns the names of all fields that a layer may add, in any format but a [`custom`](RateLimitHeaders::custom) one. A page of
/// another origin can read them only if they are exposed (`Access-Control-Expose-Headers`). The list may grow.
///
/// ```
/// use tower_http::cors::CorsLayer;
///
/// let headers = tollgate::layer::exposed_headers();
/// assert!(headers.iter().any(|name| name == "ratelimit"));
/// let cors = CorsLayer::permissive().expose_headers(headers);
/// ```
pub fn exposed_headers() -> Vec<HeaderName> {
    let lists = [RETRY_AFTER, POLICY, LIMIT];
    lists
        .into_iter()
        .chain(X_RATELIMIT)
        .chain(OPENAI.iter().chain(&ANTHROPIC).flatten().cloned())
        .chain([RETRY_AFTER_MS, SHOULD_RETRY])
        .collect()
}

/// The rate-limit fields of responses. Default: those of the current [draft](Self::draft), for all policies that applied,
/// without jitter.
///
/// `Retry-After` (RFC 9110, 10.2.3) is independent of them: every rejection after which a retry can succeed has it.
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
/// Existing fields, such as those of an upstream that a proxy forwards, are not changed: list fields are added as further
/// fields of the same name, and the three single-valued fields are not added if one of them exists. Stacked layers share their
/// lists, and single-valued fields describe the policy of all layers that is closest to its limit.
///
/// While a store fails, fields under [`LocalFallback`](crate::LocalFallback) describe this process's share: a quota of 100
/// shared by two processes is `q=50`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitHeaders {
    pub(crate) format: HeaderFormat,
    jitter: Duration,
    /// Shared, since each rejection has a clone.
    named: Option<Arc<NamedPolicies>>,
}

/// The fields of a layer that sets none.
pub(crate) static DEFAULT: RateLimitHeaders = RateLimitHeaders::draft();

/// The names of the policies that the fields of a provider describe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NamedPolicies {
    requests: Option<Box<str>>,
    tokens: Option<Box<str>>,
    input_tokens: Option<Box<str>>,
    output_tokens: Option<Box<str>>,
}

impl NamedPolicies {
    /// The setting and the policy of each group of fields.
    fn names(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("requests", self.requests.as_deref()),
            ("tokens", self.tokens.as_deref()),
            ("input_tokens", self.input_tokens.as_deref()),
            ("output_tokens", self.output_tokens.as_deref()),
        ]
    }
}

/// A format of rate-limit fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum HeaderFormat {
    /// The newest published version of the IETF's draft.
    #[default]
    Draft,
    /// `X-RateLimit-*`, with the reset in seconds from now.
    XRatelimit,
    /// The `x-ratelimit-*-requests` and `x-ratelimit-*-tokens` fields of OpenAI, of the policies `requests` and `tokens`.
    OpenAi,
    /// The `anthropic-ratelimit-*` fields of Anthropic, of the policies `requests`, `tokens`, `input_tokens` and
    /// `output_tokens`.
    Anthropic,
    /// No fields.
    None,
    /// The fields that a closure of the application writes.
    Custom(SharedFn<WriteFieldsFn>),
}

/// Writes the fields of a decision.
pub(crate) type WriteFieldsFn = dyn Fn(&Decision, &mut HeaderMap) + Send + Sync;

impl HeaderFormat {
    /// The groups of fields that describe [named policies](NamedPolicies::names), in their order.
    pub(crate) fn groups(&self) -> &'static [SingleValueHeaders] {
        match self {
            Self::OpenAi => &OPENAI,
            Self::Anthropic => &ANTHROPIC,
            _ => &[],
        }
    }
}

impl RateLimitHeaders {
    const fn of(format: HeaderFormat) -> Self {
        Self {
            format,
            jitter: Duration::ZERO,
            named: None,
        }
    }

    /// `RateLimit` and `RateLimit-Policy` of the newest published version of the IETF's draft, currently
    /// draft-ietf-httpapi-ratelimit-headers-11: structured fields (RFC 9651) such as `"burst";r=3;t=1` and `"burst";q=10;w=1`.
    /// A release that changes the version is marked as breaking.
    ///
    /// `q` is the quota, `w` its period in seconds, and `r` the units left of its burst, which may be more than `q`: the draft
    /// has no field for a burst.
    ///
    /// `t` is the time in whole seconds within which a client can use no more than `r` units (section 4.1.2):
    ///
    /// - while units remain, the end of the window under [`FixedWindow`](crate::FixedWindow),
    ///   [`CalendarWindow`](crate::CalendarWindow) and [`ListWindow`](crate::ListWindow), and the time in which the quota lets
    ///   `r` units pass, `r x period / requests`, under the others: a client that spreads `r` units over `t` seconds and looks
    ///   again keeps the rate of the policy;
    /// - with none left, the wait, which is never longer than `Retry-After`.
    ///
    /// ```
    /// use http::Response;
    /// use tollgate::{Limiter, Policy, Quota, RateLimitHeaders};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .build()?;
    /// let admission = limiter.admit("alice").await?;
    /// let mut response = Response::new(());
    /// RateLimitHeaders::draft().add_to(&mut response, &admission);
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""burst";q=10;w=1"#);
    /// assert_eq!(response.headers()["ratelimit"], r#""burst";r=9;t=1"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn draft() -> Self {
        Self::of(HeaderFormat::Draft)
    }

    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` for the policy that is closest to its limit. The
    /// last is the time in seconds until the full quota is available, rounded up; `Retry-After` says when to retry.
    ///
    /// ```
    /// use http::Response;
    /// use tollgate::{Limiter, Policy, Quota, RateLimitHeaders};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_minute()))
    ///     .build()?;
    /// let admission = limiter.admit("alice").await?;
    /// let mut response = Response::new(());
    /// RateLimitHeaders::x_ratelimit().add_to(&mut response, &admission);
    /// let fields = ["limit", "remaining", "reset"].map(|name| &response.headers()[format!("x-ratelimit-{name}")]);
    /// assert_eq!(fields, ["10", "9", "6"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn x_ratelimit() -> Self {
        Self::of(HeaderFormat::XRatelimit)
    }

    /// The fields that `write` writes, for clients that expect others. It is called for each response, also to requests to which
    /// no policy applied, after `Retry-After` has been added.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tollgate::{Decision, Policy, Quota, RateLimitHeaders, RateLimitLayer};
    ///
    /// // How many requests are left, of the policy that has the fewest.
    /// fn write(decision: &Decision, headers: &mut HeaderMap) {
    ///     if let Some(remaining) = decision.policies().map(|policy| policy.remaining()).min() {
    ///         headers.insert("x-requests-left", remaining.into());
    ///     }
    /// }
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .build()?
    ///     .headers(RateLimitHeaders::custom(write));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn custom(write: impl Fn(&Decision, &mut HeaderMap) + Send + Sync + 'static) -> Self {
        let write: Arc<WriteFieldsFn> = Arc::new(write);
        Self::of(HeaderFormat::Custom(write.into()))
    }

    /// Whether a closure of the application writes the fields.
    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.format, HeaderFormat::Custom(_))
    }

    /// The fields of OpenAI's API, for the policies that [`requests`](Self::requests) and [`tokens`](Self::tokens) name:
    /// `x-ratelimit-limit-requests`, `x-ratelimit-remaining-requests` and `x-ratelimit-reset-requests`, and the same with
    /// `-tokens`.
    ///
    /// A reset is the time until the full quota is available, rounded up to milliseconds and written as a duration of Go, such
    /// as `12ms`, `1.5s` or `6m0s`. [`Rejections::OpenAi`](crate::layer::Rejections::OpenAi) is the matching form of
    /// rejections.
    ///
    /// ```
    /// use http::Response;
    /// use tollgate::{Limiter, Policy, Quota, RateLimitHeaders};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("rpm", Quota::requests(60).per_minute()))
    ///     .policy(Policy::new("tpm", Quota::units(6_000).per_minute()))
    ///     .build()?;
    /// let admission = limiter.admit("alice").cost_for("tpm", 900).await?;
    /// let headers = RateLimitHeaders::openai().requests("rpm").tokens("tpm");
    /// let mut response = Response::new(());
    /// headers.add_to(&mut response, &admission);
    /// let field = |name: &str| response.headers()[format!("x-ratelimit-{name}")].to_str();
    /// assert_eq!([field("remaining-requests")?, field("reset-requests")?], ["59", "1s"]);
    /// assert_eq!([field("limit-tokens")?, field("remaining-tokens")?, field("reset-tokens")?], ["6000", "5100", "9s"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn openai() -> Self {
        Self::of(HeaderFormat::OpenAi)
    }

    /// The fields of Anthropic's API, for the policies that [`requests`](Self::requests), [`tokens`](Self::tokens),
    /// [`input_tokens`](Self::input_tokens) and [`output_tokens`](Self::output_tokens) name:
    /// `anthropic-ratelimit-requests-limit`, `anthropic-ratelimit-requests-remaining` and `anthropic-ratelimit-requests-reset`,
    /// and the same with `tokens`, `input-tokens` and `output-tokens`.
    ///
    /// A reset is the date at which the full quota is available, by the store's wall clock, in UTC, rounded up to seconds, as
    /// in RFC 3339: `2027-01-15T08:00:00Z`. [`Rejections::Anthropic`](crate::layer::Rejections::Anthropic) is the matching
    /// form of rejections.
    pub const fn anthropic() -> Self {
        Self::of(HeaderFormat::Anthropic)
    }

    fn name(mut self, set: impl FnOnce(&mut NamedPolicies)) -> Self {
        set(Arc::make_mut(self.named.get_or_insert_default()));
        self
    }

    /// Names the policy of the `requests` fields of [`openai`](Self::openai) and [`anthropic`](Self::anthropic). Responses to
    /// requests to which no enforced policy of that name applied don't have these fields. Other formats ignore it. Default:
    /// none.
    #[must_use]
    pub fn requests(self, policy: impl Into<Box<str>>) -> Self {
        self.name(|named| named.requests = Some(policy.into()))
    }

    /// Names the policy of the `tokens` fields, as [`requests`](Self::requests) does of its own. [`Rejections::OpenAi`]
    /// reports a rejection by it as one of tokens.
    ///
    /// [`Rejections::OpenAi`]: crate::layer::Rejections::OpenAi
    #[must_use]
    pub fn tokens(self, policy: impl Into<Box<str>>) -> Self {
        self.name(|named| named.tokens = Some(policy.into()))
    }

    /// Names the policy of the `input-tokens` fields of [`anthropic`](Self::anthropic), as [`requests`](Self::requests) does
    /// of its own.
    #[must_use]
    pub fn input_tokens(self, policy: impl Into<Box<str>>) -> Self {
        self.name(|named| named.input_tokens = Some(policy.into()))
    }

    /// Names the policy of the `output-tokens` fields of [`anthropic`](Self::anthropic), as [`requests`](Self::requests) does
    /// of its own.
    #[must_use]
    pub fn output_tokens(self, policy: impl Into<Box<str>>) -> Self {
        self.name(|named| named.output_tokens = Some(policy.into()))
    }

    /// The setting and the policy of each policy that is named, in the order of the format's
    /// [groups](HeaderFormat::groups) of fields.
    pub(crate) fn named_policies(&self) -> [(&'static str, Option<&str>); 4] {
        match &self.named {
            Some(named) => named.names(),
            None => Default::default(),
        }
    }

    /// Whether a policy is named as one of tokens.
    pub(crate) fn counts_tokens(&self, policy: &str) -> bool {
        let [_, tokens @ ..] = self.named_policies();
        tokens.iter().any(|(_, name)| *name == Some(policy))
    }

    /// No rate-limit fields; rejections still have `Retry-After`.
    pub const fn none() -> Self {
        Self::of(HeaderFormat::None)
    }

    /// Adds a random duration of up to `most` to the wait of each rejection, so that clients don't all retry at once: to
    /// `Retry-After`, to the reset of the policies that rejected, and to gRPC's delays. No wait is shortened, so a client that
    /// waits that long is admitted. Default: none.
    #[must_use]
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Whether admitted requests get no fields.
    pub(crate) const fn is_none(&self) -> bool {
        matches!(self.format, HeaderFormat::None)
    }

    /// A random time of up to the jitter, in whole milliseconds.
    pub(crate) fn sample_jitter(&self) -> Duration {
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
