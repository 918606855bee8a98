//! The result of explaining a request.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::request::Parts;
use tokio::task::coop::consume_budget;

use super::{
    bound_policy::BoundPolicy,
    core::LimiterRef,
    decide::DecisionBuilder,
    decision::{Decision, DecisionKind},
    entry::PolicyRole,
    keys::Keys,
    mode::Mode,
    policy_decision::PolicyDecision,
    resolve::RequestHead,
};
use crate::{
    access::MatchedList,
    error::{CallError, StoreError},
    extract::Extracted,
    log::without_events,
    observe::DecisionOutcome,
    policy::skip::Exemption,
    store::{Op, OpResult, TOO_FEW_RESULTS, overrides::Override},
    strategy::RetryAfter,
};

/// The decision that a request would get, and why: from [`Limiter::explain`](crate::Limiter::explain).
#[derive(Clone)]
pub struct Explanation {
    /// With an entry for each policy that applies. Its limiter has all policies.
    decision: Decision,
    list: Option<MatchedList>,
    exemption: Option<Exemption>,
    policies: Vec<PolicyCase>,
}

/// A policy of the limiter, and how it concerns the request.
#[derive(Clone, Debug)]
struct PolicyCase {
    name: Box<str>,
    role: PolicyRole,
    /// `None` if it applies.
    not_applied: Option<NotApplied>,
}

impl Explanation {
    /// How the request would be decided: [`Admitted`](DecisionOutcome::Admitted), [`Rejected`](DecisionOutcome::Rejected),
    /// [`DenyListed`](DecisionOutcome::DenyListed), [`AllowListed`](DecisionOutcome::AllowListed),
    /// [`Skipped`](DecisionOutcome::Skipped) or [`MissingKey`](DecisionOutcome::MissingKey).
    ///
    /// Policies [by hand](crate::Policy::by_hand) are not evaluated, since a request has no key for them, and a call may still
    /// reject it: [`policies`](Self::policies) has them as [`NotApplied::ByHand`], and [`Limiter::peek`](crate::Limiter::peek)
    /// says what they answer to a key.
    pub fn outcome(&self) -> DecisionOutcome {
        let decision = &self.decision;
        decision
            .kind()
            .outcome(decision.allow_listed, decision.entries.is_empty())
    }

    /// Whether the request would be admitted, but for policies [by hand](Self::outcome).
    pub fn would_admit(&self) -> bool {
        self.decision.is_admitted()
    }

    /// The wait until the request would be admitted, if neither it nor another one is sent before: the longest of all enforced
    /// policies. [`Never`](RetryAfter::Never) if waiting does not help.
    ///
    /// If the request is sent now, its rejection can make the wait longer: where a policy [charges
    /// it](crate::Policy::charge_rejected), or it begins a [ban](crate::Ban).
    pub fn retry_after(&self) -> RetryAfter {
        self.decision.retry_after()
    }

    /// The decision's kind: the name of the policy for which a key is missing, and what is missing.
    pub fn kind(&self) -> &DecisionKind {
        self.decision.kind()
    }

    /// The access list that the request is on; `None` if it is on none.
    pub fn list(&self) -> Option<&MatchedList> {
        self.list.as_ref()
    }

    /// The condition of the limiter that exempts the request from all policies; `None` if there is none, or a list decides.
    pub fn exemption(&self) -> Option<&Exemption> {
        self.exemption.as_ref()
    }

    /// All policies of the limiter, in their order of evaluation: live policies, then bans, then shadow policies.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = ExplainedPolicy<'_>> {
        (0..self.policies.len()).map(|index| self.case(index))
    }

    /// The policy of that name; `None` if the limiter has none.
    pub fn policy(&self, policy: &str) -> Option<ExplainedPolicy<'_>> {
        let mut names = self.policies.iter().map(|case| &*case.name);
        let index = names.position(|name| name == policy)?;
        Some(self.case(index))
    }

    fn case(&self, index: usize) -> ExplainedPolicy<'_> {
        ExplainedPolicy {
            explanation: self,
            case: &self.policies[index],
        }
    }
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanation")
            .field("outcome", &self.outcome())
            .field("list", &self.list)
            .field("exemption", &self.exemption)
            .field("policies", &self.policies().collect::<Vec<_>>())
            .finish()
    }
}

/// How one policy concerns a request: from [`Explanation::policies`].
#[derive(Clone, Copy)]
pub struct ExplainedPolicy<'a> {
    explanation: &'a Explanation,
    case: &'a PolicyCase,
}

impl<'a> ExplainedPolicy<'a> {
    /// The policy's name.
    pub fn name(&self) -> &'a str {
        &self.case.name
    }

    /// Whether it is a [shadow policy](crate::Policy::shadow), which is evaluated and not enforced.
    pub fn is_shadow(&self) -> bool {
        matches!(self.case.role, PolicyRole::Shadow { .. })
    }

    /// Whether it is a [ban](crate::Ban).
    pub fn is_ban(&self) -> bool {
        self.case.role == PolicyRole::Ban
    }

    /// Whether it applies to the request.
    pub fn applies(&self) -> bool {
        self.case.not_applied.is_none()
    }

    /// Why it does not apply; `None` if it does.
    pub fn not_applied(&self) -> Option<&'a NotApplied> {
        self.case.not_applied.as_ref()
    }

    /// The request's key, cost and quota under the policy, and its status before the request; `None` if it does not apply. Under
    /// a [ban](crate::Ban) that is not in force, [`remaining`](PolicyDecision::remaining) is the number of rejections left.
    pub fn status(&self) -> Option<PolicyDecision<'a>> {
        self.explanation.decision.policy(self.name())
    }

    /// Whether the policy would admit the request, also a shadow policy. If it does not apply, as a policy by hand, it admits, unless
    /// the request is rejected because it has no key.
    pub fn would_admit(&self) -> bool {
        match self.not_applied() {
            Some(NotApplied::NoKey { rejects, .. }) => !rejects,
            _ => self.status().is_none_or(|status| !status.would_reject()),
        }
    }
}

impl fmt::Debug for ExplainedPolicy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policy = f.debug_struct("ExplainedPolicy");
        policy.field("name", &self.name());
        match self.not_applied() {
            Some(reason) => policy.field("not_applied", reason),
            None => policy.field("status", &self.status()),
        };
        policy.finish()
    }
}

/// The future of an [`Explanation`]: from [`Limiter::explain`](crate::Limiter::explain).
#[must_use = "futures do nothing unless polled"]
pub struct Explain(Pin<Box<dyn Future<Output = Result<Explanation, CallError>> + Send>>);

impl Explain {
    pub(super) fn new(limiter: Arc<LimiterRef>, parts: Parts, keys: Option<Keys>) -> Self {
        Self(Box::pin(async move {
            consume_budget().await;
            limiter.explain(parts, keys).await
        }))
    }
}

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
    async fn explain(
        self: Arc<Self>,
        parts: Parts,
        keys: Option<Keys>,
    ) -> Result<Explanation, CallError> {
        // Of a peek, so that shadows and bans are evaluated and not counted.
        let mut builder = DecisionBuilder::new(Op::Peek, Mode::PEEK);
        let mut trace = RecordedTrace {
            keys,
            ..RecordedTrace::default()
        };
        without_events(|| self.select_policies(&mut builder, &parts, &mut trace));
        if !builder.entries.is_empty() {
            let result = self.read(&builder).await?;
            if result.counters.len() < builder.entries.len() {
                return Err(TOO_FEW_RESULTS.into());
            }
            self.apply_result(&mut builder, &result);
        }
        let policies = self.policies.iter().enumerate().map(|(index, bound)| {
            let mut entries = builder.entries.iter();
            let applies = entries.any(|entry| entry.policy as usize == index);
            let reason = || {
                let mut found = trace.not_applied.iter();
                let found = found.find(|(policy, _)| *policy == index);
                found.map_or(NotApplied::NotEvaluated, |(_, reason)| reason.clone())
            };
            PolicyCase {
                name: bound.policy.name().into(),
                role: bound.role,
                not_applied: (!applies).then(reason),
            }
        });
        Ok(Explanation {
            policies: policies.collect(),
            decision: builder.finish(self),
            list: trace.list,
            exemption: trace.exemption,
        })
    }

    /// The state of each policy's counter.
    async fn read(&self, builder: &DecisionBuilder) -> Result<OpResult, StoreError> {
        let response = self.with_arrival_ops(builder, |ops| self.store.execute(Op::Peek, ops));
        response.result().await
    }
}

/// Why a policy does not apply to a request: from [`ExplainedPolicy::not_applied`](crate::explain::ExplainedPolicy::not_applied).
/// Displayed as a clause: `skip_path /static/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotApplied {
    /// It applies to calls only: [`Policy::by_hand`](crate::Policy::by_hand).
    ByHand,
    /// One of its conditions exempts the request.
    Exempt(Exemption),
    /// An operator has exempted the key: [`Override::exempt`](crate::limiter::Override::exempt).
    Override(Arc<Override>),
    /// The request has no key for it.
    #[non_exhaustive]
    NoKey {
        /// What the request lacks: `the header x-api-key`.
        missing: Arc<str>,
        /// Whether the request is rejected for that, rather than exempt.
        rejects: bool,
    },
    /// The request is decided without any policy: by an access list, a condition of the limiter, or because another policy
    /// finds no key.
    NotEvaluated,
}

impl fmt::Display for NotApplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByHand => f.write_str("by hand"),
            Self::Exempt(exemption) => exemption.fmt(f),
            Self::Override(setting) => write!(f, "override: {setting}"),
            Self::NoKey { missing, rejects } => {
                let action = if *rejects { "rejected" } else { "exempt" };
                write!(f, "{action} without {missing}")
            }
            Self::NotEvaluated => f.write_str("not evaluated"),
        }
    }
}

/// Receives what the evaluation of a request finds before its policies are evaluated.
pub(crate) trait EvaluationTrace {
    /// The keys that are given in place of the request's own.
    #[inline(always)]
    fn given_keys(&self) -> Option<&Keys> {
        None
    }

    /// Finds a policy's key in a request.
    fn find_key(&mut self, bound: &BoundPolicy, head: &RequestHead<'_>) -> Extracted;

    /// The request is on an access list.
    fn on_list(&mut self, list: impl FnOnce() -> Option<MatchedList>) {
        let _ = list;
    }

    /// A condition of the limiter exempts the request from all policies.
    fn on_exempt(&mut self, exemption: impl FnOnce() -> Exemption) {
        let _ = exemption;
    }

    /// The policy of this index does not apply.
    fn on_not_applied(&mut self, policy: usize, reason: impl FnOnce() -> NotApplied) {
        let _ = (policy, reason);
    }
}

/// A request that is made: nothing is traced, and a missing key is logged.
pub(crate) struct Untraced;

impl EvaluationTrace for Untraced {
    #[inline(always)]
    fn find_key(&mut self, bound: &BoundPolicy, head: &RequestHead<'_>) -> Extracted {
        let found = bound.find_key(head);
        found.or_else(|| bound.shared_missing_key().into())
    }
}

/// The trace of a request that is not made.
#[derive(Debug, Default)]
pub(crate) struct RecordedTrace {
    keys: Option<Keys>,
    pub(crate) list: Option<MatchedList>,
    pub(crate) exemption: Option<Exemption>,
    /// By the index of the policy.
    pub(crate) not_applied: Vec<(usize, NotApplied)>,
}

impl EvaluationTrace for RecordedTrace {
    fn given_keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    fn find_key(&mut self, bound: &BoundPolicy, head: &RequestHead<'_>) -> Extracted {
        bound.peek_key(head)
    }

    fn on_list(&mut self, list: impl FnOnce() -> Option<MatchedList>) {
        self.list = list();
    }

    fn on_exempt(&mut self, exemption: impl FnOnce() -> Exemption) {
        self.exemption = Some(exemption());
    }

    fn on_not_applied(&mut self, policy: usize, reason: impl FnOnce() -> NotApplied) {
        self.not_applied.push((policy, reason()));
    }
}
