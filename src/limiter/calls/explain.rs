//! How a request would be decided, for operators.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::request::Parts;
use tokio::task::coop::consume_budget;

use super::explanation::Explanation;
use crate::{
    decision::DecisionKind,
    error::{CallError, StoreError},
    limiter::{
        DecisionBuilder, Limiter,
        core::LimiterRef,
        evaluate::{quota_lookup::run_lookups, trace::RecordedTrace},
    },
    log::without_events,
    store::{Op, OpResult, TOO_FEW_RESULTS},
};

impl Limiter {
    /// Explains the decision that a request with this head would get from a layer of this limiter now: which policies apply,
    /// with which key, cost and quota, whether it would be admitted, and when; and why the other policies don't apply.
    ///
    /// The policies are evaluated as for a request, by the same code: access lists, conditions, functions of the application
    /// and lookups of quotas included, and a rejection that the store has cached. But nothing is charged, recorded, logged or
    /// changed: no key, no TTL, no statistics of shadow policies, no ban. Other layers and middlewares of the service are
    /// not asked.
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
        let (limiter, parts) = (self.local_ref(), parts.clone());
        Explain(Box::pin(async move {
            consume_budget().await;
            limiter.explain(parts).await
        }))
    }
}

/// The future of an [`Explanation`]: from [`Limiter::explain`].
#[must_use = "futures do nothing unless polled"]
pub struct Explain(Pin<Box<dyn Future<Output = Result<Explanation, CallError>> + Send>>);

impl Future for Explain {
    type Output = Result<Explanation, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explain").finish_non_exhaustive()
    }
}

impl LimiterRef {
    async fn explain(self: Arc<Self>, parts: Parts) -> Result<Explanation, CallError> {
        // Of a peek, so that shadows and bans are evaluated and not counted.
        let mut builder = DecisionBuilder::of_call(Op::Peek, None);
        let mut trace = RecordedTrace::default();
        let lookups = without_events(|| self.select_policies(&mut builder, &parts, &mut trace));
        let lookups = lookups.filter(|lookups| !lookups.is_empty());
        if let Some(lookups) = lookups {
            let mut lookups = Box::pin(run_lookups(lookups));
            let quotas = poll_fn(|cx| without_events(|| lookups.as_mut().poll(cx))).await;
            without_events(|| self.set_quotas(&mut builder, quotas));
        }
        if !builder.entries.is_empty() {
            let cached = self.with_arrival_ops(&builder, |ops| self.store.cached_rejection(ops));
            let is_cached = cached.is_some();
            let result = match cached {
                Some(rejection) => rejection,
                None => self.inspect(&builder).await?,
            };
            if result.counters.len() < builder.entries.len() {
                return Err(TOO_FEW_RESULTS.into());
            }
            self.apply_result(&mut builder, &result);
            if is_cached {
                builder.kind = DecisionKind::Rejected;
            }
        }
        let policies = self.policies.iter();
        let policies = policies.map(|bound| (bound.policy.name().into(), bound.role));
        let policies: Vec<_> = policies.collect();
        Ok(Explanation::new(builder.finish(self), policies, trace))
    }

    /// The state of each policy's counter. Changes nothing, unless the store can only peek.
    async fn inspect(&self, builder: &DecisionBuilder) -> Result<OpResult, StoreError> {
        match self.read(Op::Inspect, builder).await {
            Err(StoreError::Unsupported(_)) => self.read(Op::Peek, builder).await,
            result => result,
        }
    }

    async fn read(&self, op: Op, builder: &DecisionBuilder) -> Result<OpResult, StoreError> {
        let response = self.with_arrival_ops(builder, |ops| self.store.execute(op, ops));
        response.result().await
    }
}
