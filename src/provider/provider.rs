//! A provider: how its responses are read, and what becomes of what they say.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

#[cfg(feature = "tonic")]
use super::grpc;
use super::{
    anthropic, feedback::Feedback, github, openai, reading::Reading, standard, text::MAX_TIME,
};
use crate::{
    error::CallError,
    limiter::{Keys, Limiter},
};

const DEFAULT_MAX_BLOCK: Duration = Duration::from_secs(3_600);
const DEFAULT_BLOCK: Duration = Duration::from_secs(1);
/// What GitHub asks for after a secondary limit.
const DEFAULT_BLOCK_GITHUB: Duration = Duration::from_secs(60);

/// A provider of an API: how its responses are read, which policies count its limits, and for how long a refusal blocks a key.
///
/// [The module](crate::provider) has the fields of each provider.
#[derive(Clone, Debug)]
pub struct Provider {
    dialect: Dialect,
    /// Names of the provider's limits, and the policies that count them.
    policies: Vec<(Cow<'static, str>, Arc<str>)>,
    block_list: Option<Arc<str>>,
    max_block: Duration,
    default_block: Duration,
}

type ReadFn = dyn Fn(StatusCode, &HeaderMap) -> Feedback + Send + Sync;

#[derive(Clone)]
enum Dialect {
    Standard,
    OpenAi,
    Anthropic,
    GitHub,
    #[cfg(feature = "tonic")]
    Grpc,
    Function(Arc<ReadFn>),
}

impl Provider {
    /// `Retry-After`, `RateLimit` and `RateLimit-Policy` of the IETF's drafts, and `X-RateLimit-*`.
    pub fn standard() -> Self {
        Self::new(Dialect::Standard)
    }

    /// OpenAI, and providers with an API like its.
    pub fn openai() -> Self {
        Self::new(Dialect::OpenAi)
    }

    /// Azure OpenAI, whose fields are those of OpenAI.
    pub fn azure_openai() -> Self {
        Self::openai()
    }

    /// Anthropic, by API key or by plan.
    pub fn anthropic() -> Self {
        Self::new(Dialect::Anthropic)
    }

    /// GitHub's REST API. A refusal without a time blocks for 60 s by default.
    pub fn github() -> Self {
        Self::new(Dialect::GitHub).default_block(DEFAULT_BLOCK_GITHUB)
    }

    /// gRPC services, whose refusals are responses of header fields alone.
    #[cfg(feature = "tonic")]
    pub fn grpc() -> Self {
        Self::new(Dialect::Grpc)
    }

    /// A provider whose responses `read` understands.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use http::{HeaderMap, StatusCode};
    /// use tollgate::provider::{Feedback, Provider, Refusal};
    ///
    /// // Refuses with 420.
    /// let provider = Provider::from_fn(|status, _headers| {
    ///     let mut feedback = Feedback::default();
    ///     feedback.refusal = (status.as_u16() == 420).then(|| Refusal::new("status 420"));
    ///     feedback
    /// })
    /// .default_block(Duration::from_secs(5));
    /// let feedback = provider.read(StatusCode::from_u16(420)?, &HeaderMap::new());
    /// assert_eq!(provider.block_time(&feedback), Some(Duration::from_secs(5)));
    /// # Ok::<(), http::status::InvalidStatusCode>(())
    /// ```
    pub fn from_fn(
        read: impl Fn(StatusCode, &HeaderMap) -> Feedback + Send + Sync + 'static,
    ) -> Self {
        Self::new(Dialect::Function(Arc::new(read)))
    }

    fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            policies: Vec::new(),
            block_list: None,
            max_block: DEFAULT_MAX_BLOCK,
            default_block: DEFAULT_BLOCK,
        }
    }

    /// Sets the policy that counts the provider's limit `name`: when nothing remains in a window of this limit, the key is blocked
    /// until its end, also after a call that succeeded. The end of another limit's window can only prolong the block of a call that
    /// was refused. An [`OutgoingLayer`](crate::OutgoingLayer::obey) logs once an hour if the limit differs from the policy's quota.
    #[must_use]
    pub fn limit(
        mut self,
        name: impl Into<Cow<'static, str>>,
        policy: impl Into<Arc<str>>,
    ) -> Self {
        let name = name.into();
        self.policies.retain(|(other, _)| *other != name);
        self.policies.push((name, policy.into()));
        self
    }

    /// Sets the block list that keys are blocked in. Default: the only one.
    #[must_use]
    pub fn block_list(mut self, policy: impl Into<Arc<str>>) -> Self {
        self.block_list = Some(policy.into());
        self
    }

    /// Sets the longest time that a response blocks a key: up to 366 days. Default: one hour. With zero nothing is blocked.
    #[must_use]
    pub fn max_block(mut self, time: Duration) -> Self {
        self.max_block = time.min(MAX_TIME);
        self
    }

    /// Sets the time that a refusal without a time blocks a key. Default: 1 s, or 60 s for GitHub. With zero it blocks nothing.
    #[must_use]
    pub fn default_block(mut self, time: Duration) -> Self {
        self.default_block = time;
        self
    }

    /// Returns what a response says. Instants are compared to its `Date`, or to the system's clock if it has none. A response that a
    /// cache has kept (`Age` above 0, RFC 9111) says nothing of limits, and what its refusal names is shortened by its age.
    pub fn read(&self, status: StatusCode, headers: &HeaderMap) -> Feedback {
        let mut reading = Reading::new(headers);
        match &self.dialect {
            Dialect::Anthropic => anthropic::read(&mut reading, status),
            Dialect::GitHub => github::read(&mut reading, status),
            #[cfg(feature = "tonic")]
            Dialect::Grpc => grpc::read(&mut reading, status),
            Dialect::Function(read) => return read(status, headers),
            Dialect::OpenAi => openai::read(&mut reading, status),
            Dialect::Standard => standard::read(&mut reading, status),
        }
        reading.into_feedback()
    }

    /// Returns how long this feedback blocks the key, at most [`max_block`](Self::max_block); `None` if it does not.
    ///
    /// A refusal blocks for the time that it names. If it names none, it blocks until the latest
    /// [end of a window](super::ReportedLimit::window_end) of which nothing remains, or else for
    /// [`default_block`](Self::default_block). Without a refusal a window of which nothing remains blocks until its end, if a
    /// [policy](Self::limit) counts it. A time of zero that a response names is
    /// ignored; a time below a millisecond is one millisecond.
    pub fn block_time(&self, feedback: &Feedback) -> Option<Duration> {
        self.block(feedback).map(|(time, _)| time)
    }

    /// The [time of a block](Self::block_time), and what causes it: the field or the status of a refusal, or the limit of which
    /// nothing remains.
    pub(crate) fn block<'a>(&self, feedback: &'a Feedback) -> Option<(Duration, &'a str)> {
        let is_refusal = feedback.refusal.is_some();
        let exhausted = feedback.limits.iter();
        // An account has limits that do not concern all of its calls.
        let exhausted =
            exhausted.filter(|limit| is_refusal || self.policy_of(&limit.name).is_some());
        let exhausted =
            exhausted.filter_map(|limit| Some((limit.exhausted_until()?, &*limit.name)));
        let exhausted = exhausted.max().filter(|(time, _)| !time.is_zero());
        let (time, cause) = match &feedback.refusal {
            Some(refusal) => {
                let named = refusal.retry_after.filter(|time| !time.is_zero());
                let time = named.or(exhausted.map(|(time, _)| time));
                (time.unwrap_or(self.default_block), &*refusal.field)
            }
            None => exhausted?,
        };
        Some((time.min(self.max_block), cause)).filter(|(time, _)| !time.is_zero())
    }

    /// Blocks a key for all processes if a provider's response says that its next call would be refused: for a client that is
    /// not behind an [`OutgoingLayer`](crate::OutgoingLayer::obey), and for responses that say it in their bodies. Returns for how
    /// long the key is blocked from now on, at least; `None` if the response does not block it.
    ///
    /// The [block](Self::block_time) is written to the [block list](crate::Policy::block_list) as
    /// [`prolong_block`](Limiter::prolong_block) does: nothing is shortened, so responses may come late, twice, or in any order.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, StatusCode};
    /// use tollgate::{Limiter, Policy, Quota, provider::Provider};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("requests", Quota::requests(50).per_hour()))
    ///     .policy(Policy::block_list("refused"))
    ///     .build()?;
    /// let anthropic = Provider::anthropic();
    ///
    /// let admission = limiter.wait("our-account", Duration::from_secs(10)).await?;
    /// // The response to the call.
    /// let (status, mut fields) = (StatusCode::TOO_MANY_REQUESTS, HeaderMap::new());
    /// fields.insert("retry-after", "12".parse()?);
    /// let feedback = anthropic.read(status, &fields);
    ///
    /// let blocked_for = anthropic.heed(&limiter, "our-account", &feedback).await?;
    /// assert_eq!(blocked_for, Some(Duration::from_secs(12)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`prolong_block`](Limiter::prolong_block), and [`NoBlockList`](CallError::NoBlockList) if the response blocks the key and
    /// the limiter has no block list, has several of which [`block_list`](Self::block_list) names none, or `keys` has no key
    /// for it. While the store fails, no block is set.
    ///
    /// # Cancellation
    ///
    /// If the future was polled and is dropped, the key may be blocked nevertheless.
    pub async fn heed(
        &self,
        limiter: &Limiter,
        keys: impl Into<Keys>,
        feedback: &Feedback,
    ) -> Result<Option<Duration>, CallError> {
        let Some(time) = self.block_time(feedback) else {
            return Ok(None);
        };
        let blocked = limiter.prolong_in_block_list(self.block_list_name(), &keys.into(), time);
        blocked.await.map(Some)
    }

    /// The policy that counts the provider's limit `name`.
    pub(crate) fn policy_of(&self, name: &str) -> Option<&Arc<str>> {
        let mut policies = self.policies.iter();
        policies.find_map(|(limit, policy)| (limit == name).then_some(policy))
    }

    /// The policies that count limits.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Arc<str>> {
        self.policies.iter().map(|(_, policy)| policy)
    }

    /// The block list, if one of several was named.
    pub(crate) fn block_list_name(&self) -> Option<&str> {
        self.block_list.as_deref()
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standard => "standard",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::GitHub => "github",
            #[cfg(feature = "tonic")]
            Self::Grpc => "grpc",
            Self::Function(_) => "from_fn",
        })
    }
}
