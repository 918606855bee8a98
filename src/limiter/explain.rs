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
    decide::{apply, decide},
    decision::{Decision, DecisionKind, PolicyDecision},
    early::{EarlyCause, is_free_preflight},
    keys::Keys,
    policy_set::{PolicyRole, PolicySet},
    request::{KeySource, LimitRequest, Purpose, RequestHead},
    resolve::{Reason, resolve},
};
use crate::{
    access::MatchedList, error::CallError, log::without_events, observe::DecisionOutcome,
    policy::skip::Exemption, store::overrides::Override, strategy::RetryAfter,
};

/// The decision that a request would get, and on_not_applied: from [`Limiter::explain`](crate::Limiter::explain).
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
    pub(super) fn new(set: Arc<PolicySet>, parts: Parts, keys: Option<Keys>) -> Self {
        Self(Box::pin(async move {
            consume_budget().await;
            explain(set, parts, keys).await
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

/// Explains the decision of a request: finds its entries with the reasons, and peeks at the store.
async fn explain(
    set: Arc<PolicySet>,
    parts: Parts,
    keys: Option<Keys>,
) -> Result<Explanation, CallError> {
    let mut explanation = Explanation {
        decision: Decision::begin(set),
        list: None,
        exemption: None,
        policies: Vec::new(),
    };
    without_events(|| explanation.find_entries(&parts, keys.as_ref()));
    let decision = &mut explanation.decision;
    if let Some(response) = decide(decision, Purpose::Peek) {
        let result = response.await;
        apply(decision, Purpose::Peek, result);
    }
    if let DecisionKind::StoreFailed(error) = &decision.kind {
        return Err(error.clone().into());
    }
    Ok(explanation)
}

impl Explanation {
    /// Finds the entries, and why other policies do not apply.
    fn find_entries(&mut self, parts: &Parts, keys: Option<&Keys>) {
        let decision = &mut self.decision;
        let set = decision.set.clone();
        let head = RequestHead::new(parts);
        let request = LimitRequest {
            purpose: Purpose::Peek,
            keys: keys.map_or(KeySource::Head, KeySource::CallOrHead),
            head: Some(&head),
            settings: None,
        };
        let mut reasons: Vec<Option<NotApplied>> = vec![None; set.policies.len()];
        let mut on_not_applied = |index: usize, reason| {
            reasons[index] = Some(NotApplied::of(&set, index, reason, parts));
        };
        let early = resolve(&set, &request, &mut decision.entries, &mut on_not_applied);
        if let Some(early) = early {
            match early.cause {
                EarlyCause::List(found) => {
                    let lists = set.lists.as_ref();
                    self.list = lists.and_then(|lists| lists.describe(found));
                }
                EarlyCause::Condition => self.exemption = Some(exemption_of(&set, &head)),
                EarlyCause::Invalid | EarlyCause::MissingKey => {}
            }
            let (kind, is_allowed) = early.into_kind();
            decision.set_early(kind, is_allowed);
        }
        let cases = set.policies.iter().zip(reasons).enumerate();
        self.policies = cases
            .map(|(index, (bound, reason))| {
                let mut entries = decision.entries.iter();
                let applies = entries.any(|entry| entry.policy as usize == index);
                PolicyCase {
                    name: bound.policy.name().into(),
                    role: bound.role,
                    not_applied: (!applies).then(|| reason.unwrap_or(NotApplied::NotEvaluated)),
                }
            })
            .collect();
    }
}

/// The condition by which no policy applies to the request.
fn exemption_of(set: &PolicySet, head: &RequestHead<'_>) -> Exemption {
    if is_free_preflight(set, head) {
        return Exemption::Preflight;
    }
    let rules = set.skip_rules();
    match rules.exempting(head.parts, &head.path) {
        Some(matched) => rules.describe(matched, head.parts),
        None => Exemption::Preflight,
    }
}

impl NotApplied {
    fn of(set: &PolicySet, index: usize, reason: Reason, parts: &Parts) -> Self {
        let bound = &set.policies[index];
        match reason {
            Reason::ByHand => Self::ByHand,
            Reason::Exempt(matched) => {
                Self::Exempt(bound.policy.describe_exemption(matched, parts))
            }
            Reason::Override(known) => Self::Override(known),
            Reason::NoKey { rejects } => Self::NoKey {
                missing: bound.missing_key_name(parts),
                rejects,
            },
        }
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
