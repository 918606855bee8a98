//! Why a request was rejected, or a call failed: problem details (RFC 9457), gRPC codes and messages.

use http::{HeaderValue, StatusCode};

use super::{RetryDelay, header_buf::HeaderBuf};
use crate::{
    limiter::{CachedBody, Decision, DecisionKind, PolicyDecision, status_of},
    strategy::RetryAfter,
};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const ABNORMAL_USAGE: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
pub(crate) const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

pub(crate) const REDUCED_CAPACITY_TITLE: &str =
    "Request cannot be satisfied due to temporary server capacity constraints";

/// Why a request was rejected. Details of a failed store are left out.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) status: StatusCode,
    /// The gRPC code.
    pub(crate) code: i32,
    /// The URI of the problem's type (RFC 9457).
    kind: &'static str,
    title: &'static str,
    detail: Option<String>,
    decision: &'a Decision,
}

impl<'a> Problem<'a> {
    pub(crate) fn of(decision: &'a Decision) -> Self {
        let status = status_of(decision.kind());
        match decision.kind() {
            DecisionKind::Rejected if decision.is_banned() => Self {
                status,
                // RESOURCE_EXHAUSTED
                code: 8,
                kind: ABNORMAL_USAGE,
                title: "Request not satisfied due to detection of abnormal request pattern",
                detail: None,
                decision,
            },
            DecisionKind::Rejected | DecisionKind::Admitted => Self {
                status,
                // RESOURCE_EXHAUSTED
                code: 8,
                kind: QUOTA_EXCEEDED,
                title: "Request cannot be satisfied as assigned quota has been exceeded",
                detail: too_costly(decision).or_else(|| shared_bucket(decision)),
                decision,
            },
            DecisionKind::MissingKey { missing, .. } => Self {
                status,
                // INVALID_ARGUMENT
                code: 3,
                kind: "about:blank",
                title: "Bad Request",
                detail: Some(format!("The request lacks {missing}.")),
                decision,
            },
            DecisionKind::DenyListed => Self {
                status,
                // PERMISSION_DENIED
                code: 7,
                kind: "about:blank",
                title: "Forbidden",
                detail: None,
                decision,
            },
            // Mistakes of the application are reported as failures of the server, too.
            DecisionKind::StoreFailed(_) | DecisionKind::Invalid(_) => Self {
                status,
                // UNAVAILABLE
                code: 14,
                kind: REDUCED_CAPACITY,
                title: REDUCED_CAPACITY_TITLE,
                detail: None,
                decision,
            },
        }
    }

    /// The decisions of the policies that rejected.
    pub(crate) fn violated(&self) -> impl Iterator<Item = PolicyDecision<'a>> {
        self.decision
            .one_per_policy()
            .filter(|decision| decision.rejected())
    }

    /// Problem details (RFC 9457), which are the same for all requests that the same policy rejected.
    pub(super) fn json(&self) -> CachedBody {
        // A detail describes this request only.
        let cached = self.decision.cached_problem();
        match cached.filter(|_| self.detail.is_none()) {
            Some(cached) => cached.get_or_init(|| self.write()).clone(),
            None => self.write(),
        }
    }

    /// Names of policies have no quotes, backslashes or control characters, so they need no escapes in JSON.
    fn write(&self) -> CachedBody {
        let mut json = HeaderBuf::new();
        json.text("{\"type\":\"").text(self.kind);
        json.text("\",\"title\":\"").text(self.title);
        json.text("\",\"status\":");
        json.number(self.status.as_u16().into());
        if let Some(detail) = &self.detail {
            json.text(",\"detail\":\"")
                .text(&escaped(detail))
                .text("\"");
        }
        let mut violated = self.violated();
        if let Some(first) = violated.next() {
            json.text(",\"violated-policies\":[\"").text(first.policy());
            for decision in violated {
                json.text("\",\"").text(decision.policy());
            }
            json.text("\"]");
        }
        json.text("}");
        let body = json.body();
        let length = HeaderValue::from(body.len());
        CachedBody { body, length }
    }

    /// A message for people.
    pub(crate) fn message(&self, delay: RetryDelay) -> String {
        let mut message = match &self.detail {
            Some(detail) => detail.clone(),
            None => format!("{}.", self.title),
        };
        let violated: Vec<_> = self.violated().map(|decision| decision.policy()).collect();
        if !violated.is_empty() {
            message.push_str(&format!(" Exceeded: {}.", violated.join(", ")));
        }
        match delay.seconds() {
            Some(1) => message.push_str(" Try again in a second."),
            Some(seconds) => message.push_str(&format!(" Try again in {seconds} seconds.")),
            None => {}
        }
        message
    }
}

/// The detail of a request that costs more than a policy ever allows, so that no retry can succeed.
fn too_costly(decision: &Decision) -> Option<String> {
    if decision.retry_after() != RetryAfter::Never {
        return None;
    }
    let mut policies = decision.policies();
    let never = policies.find(|decision| decision.retry_after() == RetryAfter::Never)?;
    let (cost, name, limit) = (never.cost(), never.policy(), never.limit());
    if cost == u64::MAX {
        return Some(format!("Policy {name} admits no such request."));
    }
    Some(format!(
        "The request costs {cost}, of which policy {name} allows at most {limit}."
    ))
}

/// In a debug build the detail of a request that was rejected because all requests share its bucket by a mistake of the
/// application.
fn shared_bucket(decision: &Decision) -> Option<String> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let mut rejecting = decision.one_per_policy().filter(|policy| policy.rejected());
    let (name, hint) =
        rejecting.find_map(|policy| Some((policy.policy(), policy.missing_key_hint()?)))?;
    Some(format!(
        "Requests without a client address share one bucket of policy {name} (reported in debug builds only): {hint}."
    ))
}

/// Escapes a JSON string (RFC 8259, section 7).
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            '\0'..='\x1f' => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => escaped.push(c),
        }
    }
    escaped
}
