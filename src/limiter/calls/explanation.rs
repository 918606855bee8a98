//! The result of explaining a request.

use std::fmt;

use crate::{
    access::MatchedList,
    decision::{Decision, DecisionKind, PolicyDecision, PolicyRole},
    limiter::evaluate::trace::{NotApplied, RecordedTrace},
    observe::{DecisionOutcome, DecisionSource},
    policy::skip::exemption::Exemption,
    strategy::RetryAfter,
};

/// The decision that a request would get, and why: from [`Limiter::explain`](crate::Limiter::explain).
#[derive(Clone)]
pub struct Explanation {
    /// With an entry for each policy that applies. Its backend knows all policies.
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
    pub(crate) fn new(
        decision: Decision,
        policies: impl IntoIterator<Item = (Box<str>, PolicyRole)>,
        trace: RecordedTrace,
    ) -> Self {
        let RecordedTrace {
            list,
            exemption,
            not_applied,
        } = trace;
        let case = |(index, (name, role)): (usize, (Box<str>, PolicyRole))| {
            let applies = decision
                .entries
                .iter()
                .any(|entry| entry.policy as usize == index);
            let found = || not_applied.iter().find(|(policy, _)| *policy == index);
            let reason = || found().map_or(NotApplied::NotEvaluated, |(_, reason)| reason.clone());
            PolicyCase {
                name,
                role,
                not_applied: (!applies).then(reason),
            }
        };
        let policies = policies.into_iter().enumerate().map(case).collect();
        Self {
            decision,
            list,
            exemption,
            policies,
        }
    }

    /// How the request would be decided: [`Admitted`](DecisionOutcome::Admitted), [`Rejected`](DecisionOutcome::Rejected),
    /// [`DenyListed`](DecisionOutcome::DenyListed), [`AllowListed`](DecisionOutcome::AllowListed),
    /// [`Skipped`](DecisionOutcome::Skipped) or [`MissingKey`](DecisionOutcome::MissingKey).
    pub fn outcome(&self) -> DecisionOutcome {
        let decision = &self.decision;
        decision
            .kind()
            .outcome(decision.allow_listed, decision.entries.is_empty())
    }

    /// Whether the request would be admitted.
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

    /// The source of the decision: a [cached rejection](DecisionSource::RejectionCache), the store, or
    /// [none](DecisionSource::NotChecked) if no policy is evaluated.
    pub fn source(&self) -> DecisionSource {
        self.decision.source()
    }

    /// The access list that the request is on; `None` if it is on none.
    pub fn list(&self) -> Option<&MatchedList> {
        self.list.as_ref()
    }

    /// The condition of the limiter that exempts the request from all policies; `None` if there is none, or a list decides.
    pub fn exemption(&self) -> Option<&Exemption> {
        self.exemption.as_ref()
    }

    /// All policies of the limiter, in their order of evaluation: enforced policies, then bans, then shadow policies.
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
            .field("source", &self.source())
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

    /// Whether the policy would admit the request, also a shadow policy. If it does not apply, it admits, unless the request is
    /// rejected because it has no key.
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
