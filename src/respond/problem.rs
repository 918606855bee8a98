//! Problem details: why a request was rejected.

use http::{HeaderValue, StatusCode};

use super::{Delay, line::Line};
use crate::{
    admission::status_of,
    decision::{self, Decision, DecisionKind, PolicyDecision},
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
                detail: too_costly(decision),
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
            // A mistake of the application is no client's business either.
            DecisionKind::StoreFailed(_)
            | DecisionKind::UnknownPolicy(_)
            | DecisionKind::PartsRequired { .. } => Self {
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

    /// What the policies say that refused.
    pub(crate) fn violated(&self) -> impl Iterator<Item = PolicyDecision<'a>> {
        self.decision
            .policies()
            .filter(|decision| decision.rejected())
    }

    /// Problem details (RFC 9457), which are the same for all requests that the same policy rejected.
    pub(super) fn json(&self) -> decision::CachedBody {
        // A detail is of this request alone.
        let said = self.decision.cached_problem();
        match said.filter(|_| self.detail.is_none()) {
            Some(said) => said.get_or_init(|| self.write()).clone(),
            None => self.write(),
        }
    }

    /// Policies' names hold neither quotes nor backslashes nor control characters, so that JSON takes them as they are.
    fn write(&self) -> decision::CachedBody {
        let mut json = Line::new();
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
        let text = json.body();
        let length = HeaderValue::from(text.len());
        decision::CachedBody { body: text, length }
    }

    /// A line for people.
    pub(crate) fn sentence(&self, delay: Delay) -> String {
        let mut sentence = match &self.detail {
            Some(detail) => detail.clone(),
            None => format!("{}.", self.title),
        };
        let violated: Vec<_> = self.violated().map(|decision| decision.policy()).collect();
        if !violated.is_empty() {
            sentence.push_str(&format!(" Exceeded: {}.", violated.join(", ")));
        }
        match delay.seconds() {
            Some(1) => sentence.push_str(" Try again in a second."),
            Some(seconds) => sentence.push_str(&format!(" Try again in {seconds} seconds.")),
            None => {}
        }
        sentence
    }
}

/// What is wrong with a request that costs more than a policy ever allows: there is no time to try it again at.
fn too_costly(decision: &Decision) -> Option<String> {
    if decision.retry_after() != RetryAfter::Never {
        return None;
    }
    let mut policies = decision.policies();
    let never = policies.find(|decision| decision.retry_after() == RetryAfter::Never)?;
    let (cost, name, limit) = (never.cost(), never.policy(), never.limit());
    Some(format!(
        "The request costs {cost}, of which policy {name} allows at most {limit}."
    ))
}

/// As it stands in a string of JSON (RFC 8259, section 7).
fn escaped(text: &str) -> String {
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
