//! The public calls of a limiter.

use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;
use tokio::task::coop::consume_budget;

use super::{
    adjust::Adjust,
    admission::Admission,
    bans::{BlockEnd, Blocks, block, unblock},
    builder::LimiterBuilder,
    check::Check,
    current::Limiter,
    decision::{Decision, LimitStatus},
    explain::Explain,
    handle::PolicyHandle,
    health::recent_health,
    keys::Keys,
    listener::AdjustListener,
    policy_set::{BoundPolicy, PolicySet},
    rejected::Rejected,
    report::{CallQueues, Listener},
    request::Purpose,
    resolve::Adjusting,
    shutdown::{ShutdownError, shutdown},
    wait::Wait,
};
#[cfg(feature = "admin")]
use crate::quota::Quota;
#[cfg(feature = "config")]
use crate::store::Store;
use crate::{
    changes::Changes,
    error::{CallError, ConfigError, UnknownPolicy},
    observe::{Event, LimiterStats, Observers, ShadowStats, StatsHandle},
    policy::Policy,
    store::{StoreAdmin, health::HealthReport},
    sync::lock,
};

impl Limiter {
    /// Returns a builder of a limiter.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::new()
    }

    /// Admits a request and charges it under every policy, or rejects it and charges it under none. Made for handlers, where
    /// `?` turns a rejection into the response.
    ///
    /// The [`Admission`] holds the permits of [in-flight limits](crate::Concurrency), and releases them when it is dropped:
    /// bind it to a name for as long as the work takes. `keys` and the settings are those of [`check`](Limiter::check).
    ///
    /// The layers around the handler don't know the admission: [`RateLimitHeaders::add_to`](crate::RateLimitHeaders::add_to)
    /// adds its fields to the handler's response.
    ///
    /// The call has no response whose outcome could be charged. Under a policy with [`charge_after`](Policy::charge_after) the
    /// handler charges by [`Admission::policy`] and [`charge`](crate::limiter::PolicyAdmission::charge), and under one with
    /// [`refund_unless`](Policy::refund_unless) it refunds.
    ///
    /// ```
    /// use tollgate::{Limiter, Rejected};
    ///
    /// async fn send_mail(limiter: &Limiter, user: &str) -> Result<(), Rejected> {
    ///     let _admission = limiter.admit(user).await?;
    ///     // Here the mail is sent. The permit is released at the end.
    ///     Ok(())
    /// }
    /// # use tollgate::{Policy, Quota};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let limiter = Limiter::builder().policy(Policy::new("mail", Quota::concurrent(1))).build()?;
    /// # send_mail(&limiter, "alice").await?;
    /// # send_mail(&limiter, "alice").await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejected`] if a quota is exhausted, a key is banned or on a [deny list](LimiterBuilder::deny), the store failed and
    /// the limiter [rejects](crate::OnStoreError::Reject) then, or the call is invalid: a name that no policy has, or no
    /// [`parts`](Check::parts) for a policy that takes settings from requests.
    ///
    /// # Cancellation
    ///
    /// Dropping the future before it completes cancels the request: a charge that was made nevertheless is refunded.
    pub fn admit(&self, keys: impl Into<Keys>) -> Check<Result<Admission, Rejected>> {
        Check::new(self.policy_set(), Purpose::Admit, keys.into())
    }

    /// Admits or rejects a request as [`admit`](Limiter::admit) does, and returns the [`Decision`] in either case. It never
    /// fails: [`DecisionKind`](crate::limiter::DecisionKind) has the errors that `admit` returns. Cancellation is that of `admit`.
    ///
    /// `keys` is one [`Key`](crate::Key) for all policies, or pairs of a policy's name and its key.
    ///
    /// One key identifies the caller under all policies, except those by [`extract::global`](crate::extract::global), which
    /// count by their own key. Policies that count by something other than the caller, such as the peer's address or the path,
    /// have to be named, since the key would be counted as if it were an address or a path: `[("address", address), ("user",
    /// user), ("budget", Key::global())]`. Policies that are not named don't apply to the call, bans and shadow policies
    /// included.
    ///
    /// An invalid call is rejected ([`DecisionKind::Invalid`](crate::limiter::DecisionKind::Invalid)): a name that no policy has, a policy
    /// that takes settings from requests, without [`parts`](Check::parts), or an [in-flight limit](crate::Concurrency), whose permit only
    /// `admit` and [`wait`](Limiter::wait) hold.
    ///
    /// The cost is each policy's own unless set:
    ///
    /// ```no_run
    /// # async fn f(limiter: tollgate::Limiter) {
    /// # use tollgate::Key;
    /// let address = Key::ip("192.0.2.1".parse().unwrap());
    /// let decision = limiter
    ///     .check([("address", address), ("user", Key::new("alice"))])
    ///     .cost(3)
    ///     .await;
    /// # }
    /// ```
    pub fn check(&self, keys: impl Into<Keys>) -> Check<Decision> {
        Check::new(self.policy_set(), Purpose::Check(1), keys.into())
    }

    /// Waits until a request is admitted, for at most `timeout` from the first poll, and charges it: for outgoing calls, jobs,
    /// and other work that is better late than rejected.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limiter, Policy, Quota, RetryAfter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("mail", Quota::requests(1).per(Duration::from_millis(20))))
    ///     .build()?;
    /// let patience = Duration::from_secs(5);
    /// for _ in 0..3 {
    ///     let _admission = limiter.wait(Key::new("alice"), patience).await?;
    /// }
    ///
    /// // A quota of one never admits two units together: that is rejected at once.
    /// let rejected = limiter.wait(Key::new("alice"), patience).cost(2).await.unwrap_err();
    /// assert_eq!(rejected.retry_after(), RetryAfter::Never);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # First come, first served
    ///
    /// Requests for the same keys through clones of one limiter wait in a queue. One that finds no queue calls the store, and enters
    /// if it is rejected. The first in the queue calls the store again when the rejection says that it can succeed, and whenever this
    /// limiter gives units back: by a settlement, refund, credit, [`reset`](Limiter::reset), [`unblock`](Limiter::unblock) or released
    /// permit, and when an override or the policies change. What other processes give back is found by its next call.
    ///
    /// The others sleep. If an admission leaves units for more of them, as many call the store together, and are admitted in any order;
    /// else none overtakes another: an expensive request blocks those behind it. A [`check`](Limiter::check) doesn't queue, and other
    /// processes have queues of their own: the quota holds for all of them together, but no order. A request whose timeout ends while
    /// the first one calls the store has the result of that call.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves the queue, and a charge that was made for it is refunded. A future that is neither polled nor dropped
    /// blocks those behind it, as with tokio's locks: they call the store at their timeouts at the earliest.
    ///
    /// # When the store fails
    ///
    /// The store is called again, after 5 ms at first and every 250 ms at most, until it responds or the timeout has passed;
    /// then the request is rejected with the store's error. If [`on_store_error`](crate::limiter::LimiterBuilder::on_store_error) is
    /// set, the request is admitted or rejected at once, or waits for units of its share in process.
    ///
    /// # In-flight limits
    ///
    /// The time at which a permit will be released is unknown. Permits that other processes release are found by calling the store,
    /// after 5 ms at first and every 250 ms at most. So processes don't share an exhausted in-flight limit evenly: one with a queue
    /// takes each permit that it releases again at once, and another may get none until that queue is empty. Where that matters, give
    /// each process a limit of its own, such as 2 and 1 of 3.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), at once, if
    /// - the wait of the first in the queue exceeds its timeout, if both have the same cost; or the timeout passes while others are
    ///   in front of it, whose waits [`retry_after`](crate::Rejected::retry_after) does not include: a service that passes it on to
    ///   its own clients adds some, such as the timeout;
    /// - the [queue](Wait::queue) is full. In both cases the status is that of the last rejection in the queue;
    /// - it costs more than a quota ever allows;
    /// - it is [invalid](crate::limiter::DecisionKind::Invalid);
    /// - the store failed, and the limiter [rejects](crate::OnStoreError::Reject) then, or the store is
    ///   [misconfigured](crate::StoreError::is_misconfiguration);
    /// - it would have to wait outside of a tokio runtime with timers: [`StoreError::NoRuntime`](crate::StoreError::NoRuntime).
    ///
    /// Under [`charge_rejected`](crate::Policy::charge_rejected) each rejected store call for the first in the queue is
    /// charged.
    ///
    /// # Access lists, bans and shadow policies
    ///
    /// A request on a [deny list](crate::limiter::LimiterBuilder::deny) is rejected at once, and one on an [allow
    /// list](crate::limiter::LimiterBuilder::allow) is admitted at once. Waiting is no rejection: a [ban](crate::Ban) counts a request
    /// once, and only if this returns [`Rejected`](crate::Rejected); a banned key waits as for an exhausted quota. [Shadow
    /// policies](crate::Policy::shadow) are evaluated when the request is admitted; no request waits for them.
    pub fn wait(&self, keys: impl Into<Keys>, timeout: Duration) -> Wait {
        Wait::new(self.clone(), keys.into(), timeout)
    }

    /// Reports the status of a request's keys without charging them. [Address lists](crate::access::AddressList) are evaluated only if
    /// the call has an address, by [`address`](Check::address) or [`parts`](Check::parts). Dropping the future is harmless.
    ///
    /// The status is the store's: units that processes hold in [leases](crate::Policy::lease), this one included, count as used.
    /// So a process may still admit a request that the status says would be rejected.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("api", Quota::requests(5).per_minute()))
    ///     .build()?;
    /// assert!(limiter.check("alice").times(3).await.is_admitted());
    /// let status = limiter.peek("alice").await?;
    /// assert_eq!(status.policy("api").unwrap().remaining(), 2);
    /// // Of a request that costs more.
    /// assert!(!limiter.peek("alice").cost(3).await?.would_admit());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says, or the call is invalid: under a
    /// policy with [`cost_with`](crate::Policy::cost_with), say of which cost the request would be, such as `.cost(1)`, and with
    /// [`quota_with`](crate::Policy::quota_with) set [`quota_for`](Check::quota_for); or pass a request by
    /// [`parts`](Check::parts).
    pub fn peek(&self, keys: impl Into<Keys>) -> Check<Result<LimitStatus, CallError>> {
        Check::new(self.policy_set(), Purpose::Peek, keys.into())
    }

    /// Explains the decision that a request with this head would get from a layer of this limiter now: which policies apply,
    /// with which key, cost and quota, whether it would be admitted, and when; and why the other policies don't apply.
    ///
    /// The policies are evaluated as for a request, by the same code: access lists, conditions and functions of the application
    /// included, as the store counts the keys now: a process may reject one from its cache for up to
    /// `RedisStoreBuilder::rejection_cache_staleness` longer. But nothing is charged, recorded, logged or changed: no key, no TTL,
    /// no statistics of shadow policies, no ban. Other layers and middlewares of the service are not asked.
    ///
    /// An endpoint such as `/usage` explains a request with its caller's head and a path that the policies apply to.
    ///
    /// Units that processes hold in [leases](crate::Policy::lease) count as used, as in [`peek`](Limiter::peek). An explanation
    /// spends none of them, and requests no lease: the decision is the store's.
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::{Limiter, Policy, Quota, extract};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("api", Quota::requests(5).per_minute()).key(extract::header("x-user")))
    ///     .policy(Policy::new("login", Quota::requests(1).per_minute()).only_path("/login"))
    ///     .build()?;
    /// let (parts, ()) = Request::get("/").header("x-user", "alice").body(())?.into_parts();
    /// let explanation = limiter.explain(&parts).await?;
    /// assert!(explanation.would_admit());
    /// let api = explanation.policy("api").and_then(|api| api.status()).ok_or("it applies")?;
    /// assert_eq!((api.cost(), api.remaining()), (1, 5));
    /// let login = explanation.policy("login").ok_or("no policy")?;
    /// let reason = login.not_applied().map(ToString::to_string);
    /// assert_eq!(reason.as_deref(), Some("only_path /login"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says. Dropping the future is harmless.
    pub fn explain(&self, parts: &Parts) -> Explain {
        Explain::new(self.policy_set(), parts.clone(), None)
    }

    /// [`explain`](Self::explain) with keys in place of those that these policies find in the request. A policy by hand that has one
    /// applies.
    #[cfg(feature = "admin")]
    pub(crate) fn explain_with_keys(&self, parts: &Parts, keys: Keys) -> Explain {
        Explain::new(self.policy_set(), parts.clone(), Some(keys))
    }

    /// Charges `units` under every policy, also more than are left: down to a debt of at most one capacity, which has to refill
    /// before later requests are admitted. For costs that are known only afterwards.
    ///
    /// A [ban](crate::Ban) is charged only if it is named: it then counts `units` rejections.
    ///
    /// Returns the status of a request **of as many units** afterwards: its wait is [`Never`](crate::RetryAfter::Never) if
    /// `units` are more than the quota ever admits at once. A [`peek`](Limiter::peek) has that of the caller's next request.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("tokens", Quota::units(100).per_hour()))
    ///     .build()?;
    /// let status = limiter.charge("alice", 130).await?;
    /// assert_eq!(status.policy("tokens").unwrap().remaining(), 0);
    /// // The debt of 30 units, and one more, take 31 times 36 s to refill.
    /// let wait = limiter.peek("alice").await?.retry_after().duration().unwrap_or_default();
    /// assert_eq!(wait.as_secs() / 60, 18);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// If the future was polled and is dropped, the units may be charged nevertheless.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says, or the call is invalid. If the charge
    /// [may have been made](crate::StoreError::may_have_run), a repetition could charge twice; else nothing was charged. What other
    /// slots of a cluster charged is refunded.
    pub fn charge(&self, keys: impl Into<Keys>, units: u64) -> Adjust {
        Adjust::new(self.policy_set(), keys.into(), Adjusting::Charge(units))
    }

    /// Removes the usage of `keys`, so that their full quota is available, and ends [bans](crate::Ban) among their policies.
    /// Returns the status before. One key for all policies does not reset policies by
    /// [`extract::global`](crate::extract::global), which count all requests together, unless it is their own key or there are
    /// no other policies.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("mail", Quota::requests(1).per_hour()))
    ///     .build()?;
    /// assert!(limiter.admit("alice").await.is_ok());
    /// let before = limiter.reset("alice").await?;
    /// assert_eq!(before.policy("mail").unwrap().remaining(), 0);
    /// assert!(limiter.admit("alice").await.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A later refund of a charge from before the reset is subtracted from the charges since, unless the strategy can
    /// distinguish them ([`FixedWindow`](crate::FixedWindow), [`ListWindow`](crate::ListWindow),
    /// [`SlidingLog`](crate::SlidingLog)): requests in flight during the reset can let as many units more be admitted as they
    /// are refunded.
    ///
    /// If the future was polled and is dropped, the keys may be reset nevertheless.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says, or the call is invalid. Keys in
    /// other slots of a cluster may be reset then; shares in process are not. The call can be repeated.
    pub fn reset(&self, keys: impl Into<Keys>) -> Adjust {
        Adjust::new(self.policy_set(), keys.into(), Adjusting::Reset)
    }

    /// Blocks a key for `time` from now on, in all processes, under every [ban](crate::Ban), or under the bans that `keys`
    /// name. A ban by [`extract::global`](crate::extract::global), which would block all requests, has to be named. Replaces a
    /// ban in force, also a longer one, and does not count towards the doubling of later ones.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Ban, Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let ban = Ban::for_duration(Duration::from_secs(600));
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .policy(Policy::new("abuse", Quota::requests(20).per_minute()).strategy(ban))
    ///     .build()?;
    /// let mallory = Key::new("mallory");
    /// limiter.block(mallory, Duration::from_secs(3_600)).await?;
    /// assert!(!limiter.check(mallory).await.is_admitted());
    /// let before = limiter.unblock(mallory).await?;
    /// assert!(!before.would_admit());
    /// assert!(limiter.check(mallory).await.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, a name is unknown, or none of the policies is a ban ([`NotABan`](CallError::NotABan));
    /// [`StoreError::Unsupported`](crate::StoreError::Unsupported) in it if `time` is not between a millisecond and ten years. A
    /// store error is returned whatever [`OnStoreError`](crate::OnStoreError) says; keys in other slots of a cluster may be blocked
    /// then, and the call can be repeated.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the key may or may not be blocked.
    pub async fn block(&self, keys: impl Into<Keys>, time: Duration) -> Result<(), CallError> {
        let set = self.policy_set();
        block(&set, &keys.into(), time, BlockEnd::Set).await
    }

    /// Blocks a key for at least `time` from now on, as [`block`](Limiter::block) does, and never shortens a ban in force: that ends at
    /// the later of its end and `time` from now. So repeated and reordered calls leave the latest end, such as those for the
    /// `Retry-After` of an API's responses.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("calls", Quota::requests(10).per_second()))
    ///     .policy(Policy::block_list("refused"))
    ///     .build()?;
    /// for seconds in [60, 5] {
    ///     limiter.prolong_block(Key::new("api"), Duration::from_secs(seconds)).await?;
    /// }
    /// let wait = limiter.check(Key::new("api")).await.retry_after().duration();
    /// assert!(wait > Some(Duration::from_secs(50)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Observers get [`BanBegan`](crate::observe::Event::BanBegan), unless the ban in force was longer.
    ///
    /// # Errors
    ///
    /// Those of [`block`](Limiter::block), which also describes cancellation; `Unsupported` too for a ban of your own whose rule has no
    /// [`prolonged_ban`](crate::strategy::Rule::prolonged_ban).
    pub async fn prolong_block(
        &self,
        keys: impl Into<Keys>,
        time: Duration,
    ) -> Result<(), CallError> {
        let set = self.policy_set();
        block(&set, &keys.into(), time, BlockEnd::Prolong).await
    }

    /// Ends the bans of a key in all processes, under every [ban](crate::Ban) or under the bans that `keys` name, and removes
    /// its counts of rejections and of earlier bans. Another process may reject the key from its cache for up to
    /// `RedisStoreBuilder::rejection_cache_staleness`.
    ///
    /// Returns the status before, under each of these bans, as the store had it when it ended them: if it
    /// [would admit](LimitStatus::would_admit) a request, no ban was in force.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, a name is unknown, or none of the policies is a ban ([`NotABan`](CallError::NotABan)).
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the bans may or may not have ended.
    pub async fn unblock(&self, keys: impl Into<Keys>) -> Result<LimitStatus, CallError> {
        unblock(self.policy_set(), &keys.into()).await
    }

    /// Lists up to `max` keys that are blocked now under any [ban](crate::Ban), by hand or by rejections, in any process.
    ///
    /// On Redis it looks through the names of all keys of the server, or of each node of a cluster, by `SCAN`: for operators,
    /// not for requests. It needs the permission `+scan`, as
    /// [`HealthReport::unchecked`](crate::store::HealthReport::unchecked) says, and ends after ten seconds. The server serves other
    /// calls in between.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .policy(Policy::block_list("locked"))
    ///     .build()?;
    /// let locked = limiter.policy("locked")?;
    /// locked.block(Key::secret("sk_live_1"), Duration::from_secs(600)).await?;
    /// let blocks = limiter.blocks(100).await?;
    /// assert!(blocks.is_complete());
    /// for block in &blocks {
    ///     // The key is shown by its hash: `hash:` and 20 characters.
    ///     println!("{} {} {:?}", block.policy(), block.key_text(), block.ends_in());
    ///     let key = locked.parse_key(&block.key_text()).ok_or("no key")?;
    ///     locked.unblock(key).await?;
    /// }
    /// assert!(limiter.blocks(100).await?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, or can't list keys. Dropping the future is harmless.
    pub async fn blocks(&self, max: usize) -> Result<Blocks, CallError> {
        Blocks::find(self, max, BoundPolicy::is_ban).await
    }

    /// Returns a handle to the policy of that name, for calls by operators and for [calls](crate::limiter::CallEntry) of a program with
    /// many policies or several keys for one. Get it once, when the application starts, so that a
    /// mistyped name is an error there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Policy, Quota, extract};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("daily", Quota::requests(100).per_day()).key(extract::header("x-api-key")))
    ///     .build()?;
    /// let daily = limiter.policy("daily")?;
    /// // The key that requests with this header are counted by: a hash.
    /// let key = daily.key("sk_live_1").ok_or("no key")?;
    /// assert_eq!(daily.charge(key, 30).await?.policies().next().unwrap().remaining(), 70);
    /// daily.credit(key, 10).await?;
    /// let before = daily.reset(key).await?;
    /// assert_eq!(before.policies().next().unwrap().remaining(), 80);
    /// assert!(limiter.policy("dayly").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if the limiter has no policy of that name.
    pub fn policy(&self, name: &str) -> Result<PolicyHandle, UnknownPolicy> {
        let set = self.policy_set();
        let index = set.find(name)?;
        Ok(PolicyHandle::new(self, index, &set.policies[index]))
    }

    /// The policies in force, in their order of evaluation: live policies, then bans, then shadow policies.
    pub fn policies(&self) -> Vec<Policy> {
        self.policy_set().policies().cloned().collect()
    }

    /// Replaces the policies, access lists and other settings by those of `builder`, for the limiter, its clones, and all layers
    /// over it. [`Changes`] says what has changed, policy by policy, and what becomes of the counts: see [changing a live
    /// policy](crate::strategy#changing-a-live-policy).
    ///
    /// All is replaced at once: a request is decided under the old settings or under the new ones, and each [`check`](Limiter::check)
    /// that is created after the return is decided under the new ones. Requests that are decided already finish under the old ones: their
    /// permits, settlements and refunds too. Those that [wait](Limiter::wait) are decided, and wait, under the new ones, until
    /// their own timeout.
    ///
    /// The store stays, with its connections, circuit breaker and counts, so `builder` needs none. So do the counts of local
    /// [fallbacks](crate::LocalFallback). A policy that has not changed keeps its cached rejections, and its
    /// [shadow statistics](Limiter::shadow_stats).
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("api", Quota::requests(10).per_minute()))
    ///     .build()?;
    /// assert!(limiter.check("alice").times(5).await.is_admitted());
    /// let api = Policy::new("api", Quota::requests(20).per_minute());
    /// let changes = limiter.reconfigure(Limiter::builder().policy(api))?;
    /// println!("{changes}");
    /// // The used share stays.
    /// assert_eq!(limiter.peek("alice").await?.policy("api").unwrap().remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Calls from several threads are made one after the other. The call does not block on the store, and needs no runtime.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] as by [`build`](LimiterBuilder::build), or if `builder` has another store. Nothing is changed then.
    pub fn reconfigure(&self, builder: LimiterBuilder) -> Result<Changes, ConfigError> {
        self.replace(builder, Vec::new)
    }

    /// Counts what the [shadow policy](crate::Policy::shadow) of that name would have rejected; `None` if the limiter has no such shadow policy. See [`Policy::shadow`](crate::Policy::shadow) for an example.
    pub fn shadow_stats(&self, policy: &str) -> Option<ShadowStats> {
        let set = self.policy_set();
        let bound = set.named(policy).ok()?;
        bound.is_shadow().then(|| bound.state.shadow.stats())
    }

    /// The state of the limiter and its store in this process: permits, waiters, and what the
    /// [store](crate::observe::StoreStats) keeps, among it the units of [leases](crate::observe::LeaseStats). For gauges: cheap,
    /// without a call of the store.
    pub fn stats(&self) -> LimiterStats {
        self.shared.stats()
    }

    /// Checks the store's servers, and charges and resets a key of its own under each policy, in one call. For the start of an
    /// application and its health checks: it costs a few round trips per server, and one per policy. Commands that only a key
    /// in use needs, such as `ZREM` for releases of permits, are not tried.
    ///
    /// It waits one second for the first response of a Redis server, or the store's timeout if that is longer; on a cluster for
    /// each node in turn, and up to five seconds for the slot map. A server that has responded gets up to five seconds for each
    /// further round trip, so that a slow server is checked to the end; its first missing response ends its check.
    ///
    /// Checks run one after the other, and calls that wait share the next report. Dropping the future leaves no key behind: a health
    /// check with less time wraps it in `tokio::time::timeout`.
    ///
    /// It finds problems that would show only later, such as a missing permission, or counts that are silently evicted. Each is
    /// a [`HealthIssue`](crate::store::HealthIssue) of the report; a store that can't be reached is one too. Requests that share a bucket
    /// because they lack a client address are a [`HealthWarning`](crate::store::HealthWarning).
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .build()?;
    /// let report = limiter.health_check().await;
    /// for issue in report.issues() {
    ///     eprintln!("{issue}");
    /// }
    /// assert!(report.is_healthy());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn health_check(&self) -> HealthReport {
        self.recent_health(Duration::ZERO).await
    }

    /// Sends the operations that are queued in this process to the store, and waits for the responses, for at most `timeout`:
    /// refunds, released permits and charges without a waiter, among them those that were kept while the store failed. Units of
    /// [leases](crate::Policy::lease) are refunded. Call it before a process ends, once its server has stopped: operations that
    /// are queued then are lost, and their units come back only with time.
    ///
    /// The limiter stays usable: operations that later checks queue need another call. Drop permits and
    /// [admissions](crate::Admission) first, since those in use are not released or settled. The queue belongs to the store:
    /// limiters and layers over clones of it need one call.
    ///
    /// ```no_run
    /// # async fn f(layer: tollgate::RateLimitLayer, app: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let limiter = layer.limiter().clone();
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    /// axum::serve(listener, app)
    ///     .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
    ///     .await?;
    /// limiter.shutdown(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ShutdownError`] counts the operations that were not sent in time. They stay queued. Outside of a tokio runtime with timers
    /// it is returned at once, if something is queued.
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends the wait; what was not sent stays queued.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), ShutdownError> {
        consume_budget().await;
        shutdown(&*self.policy_set().store, timeout).await
    }

    /// The store that holds the counts.
    #[cfg(feature = "config")]
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.policy_set().store.clone()
    }

    /// Replaces the policies. `bind` says what the new ones take over from the old ones. `layer_differences` returns the names of a
    /// layer's settings that differ, for the [`Changes`].
    pub(crate) fn replace<T>(
        &self,
        builder: LimiterBuilder<T>,
        layer_differences: impl FnOnce() -> Vec<&'static str>,
    ) -> Result<Changes, ConfigError> {
        let _replacing = lock(&self.shared.replacing);
        let old = self.policy_set();
        let queues = self.shared.queues.clone();
        let new = PolicySet::share(builder.build_policies(Some(&old), listener(queues))?);
        let changes = Changes::between(old.policies(), new.first().policies())
            .with_settings(old.differences(new.first()))
            .with_settings(layer_differences());
        self.report_policies(new.first());
        // From here on nothing calls code of the application.
        self.shared.sets.replace(new);
        self.shared.queues.wake_all();
        Ok(changes)
    }

    /// Reports the policies that are in force from now on.
    fn report_policies(&self, set: &PolicySet) {
        let Some(observers) = &set.observers else {
            return;
        };
        for observer in observers.iter() {
            set.store.observe(observer);
        }
        let shared = Arc::downgrade(&self.shared);
        let handle = StatsHandle::new(move || Some(shared.upgrade()?.stats()));
        let stats = self.shared.stats_of(set);
        let event = Event::PoliciesInForce {
            stats: &stats,
            handle: &handle,
        };
        observers.on_event(&event);
    }

    /// Reports a change of state.
    #[cfg(feature = "config")]
    pub(crate) fn report_event(&self, event: &Event<'_>) {
        if let Some(observers) = &self.policy_set().observers {
            observers.on_event(event);
        }
    }

    /// The report of a health check that ended less than `max_age` ago, or else of a new one.
    pub(crate) async fn recent_health(&self, max_age: Duration) -> HealthReport {
        let set = self.policy_set();
        recent_health(&self.shared.health, &set, max_age).await
    }

    /// Reports the status of keys alone, as for an operator: access lists, conditions and costs of requests don't apply. A policy
    /// that takes its quota from requests has that of `quotas`, or else its own.
    #[cfg(feature = "admin")]
    pub(crate) fn peek_keys(&self, keys: Keys, quotas: Vec<(String, Quota)>) -> Adjust {
        let set = self.policy_set();
        let by_request = set
            .policies()
            .filter(|policy| policy.has_quota_of_request());
        let own: Vec<_> = by_request
            .map(|policy| (policy.name().to_owned(), policy.quota()))
            .collect();
        let peek = Adjust::new(set, keys, Adjusting::Nothing);
        // The first of a name counts.
        let all = quotas.into_iter().chain(own);
        all.fold(peek, |peek, (policy, quota)| peek.quota_for(policy, quota))
    }
}

/// What makes the receiver of what charges report.
fn listener(
    queues: Arc<CallQueues>,
) -> impl FnOnce(Option<&Arc<Observers>>) -> Arc<dyn AdjustListener> {
    |observers| {
        Arc::new(Listener {
            observers: observers.cloned(),
            queues,
        })
    }
}

impl<T> LimiterBuilder<T> {
    /// Builds the limiter or the layer. Nothing connects before the first request.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no policy; a policy's name is invalid or used twice; a strategy can't count a quota or a
    /// [tier](Policy::tier_quotas), or can't count in the store; an extractor or a condition is invalid; a
    /// [fallback](crate::LocalFallback) is shared by 0 processes, or its shares can't be counted in process; a policy's cost is
    /// more than it can ever admit; a [`KeyList`](crate::access::KeyList) names a policy that the limiter doesn't
    /// have.
    pub fn build(self) -> Result<T, ConfigError>
    where
        T: From<Limiter>,
    {
        let queues = Arc::<CallQueues>::default();
        let policies = self.build_policies(None, listener(queues.clone()))?;
        let limiter = Limiter::with(PolicySet::share(policies), queues.clone());
        let set = limiter.policy_set();
        limiter.report_policies(&set);
        if let Some(table) = set.store.admin().and_then(StoreAdmin::overrides) {
            let queues = Arc::downgrade(&queues);
            table.on_change(move |changed| {
                let queues = queues.upgrade();
                let Some(queues) = queues else {
                    return false;
                };
                for (policy, key) in changed {
                    queues.released(policy, key);
                }
                true
            });
        }
        Ok(T::from(limiter))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.policy_set();
        f.debug_struct("Limiter")
            .field("store", &set.store)
            .field("policies", &self.policies())
            .field("on_store_error", &set.on_store_error)
            .field("on_misconfiguration", &set.on_misconfiguration)
            .finish()
    }
}
