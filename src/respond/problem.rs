//! Why a request was refused, for everybody who is told.

use http::StatusCode;

use super::Delay;
use crate::decision::{Decision, Ruling};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Why a request was refused. What is wrong with the store, and where it is, is nobody's business.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// The gRPC code.
    pub(crate) code: i32,
    /// The URI of the problem's type (RFC 9457).
    kind: &'static str,
    title: &'static str,
    detail: Option<String>,
    /// The policies that refused.
    pub(crate) violated: Vec<String>,
}

impl Problem {
    pub(crate) fn of(decision: &Decision) -> Self {
        match decision.ruling() {
            Ruling::Exhausted | Ruling::Admitted => {
                let refused = decision.verdicts().filter(|verdict| verdict.refused());
                Self {
                    status: StatusCode::TOO_MANY_REQUESTS,
                    // RESOURCE_EXHAUSTED
                    code: 8,
                    kind: QUOTA_EXCEEDED,
                    title: "Request cannot be satisfied as assigned quota has been exceeded",
                    detail: None,
                    violated: refused.map(|v| v.policy().to_owned()).collect(),
                }
            }
            Ruling::MissingKey { policy } => Self {
                status: StatusCode::BAD_REQUEST,
                // INVALID_ARGUMENT
                code: 3,
                kind: "about:blank",
                title: "Bad Request",
                detail: Some(format!(
                    "The request lacks what policy '{policy}' counts by."
                )),
                violated: Vec::new(),
            },
            Ruling::Denied => Self {
                status: StatusCode::FORBIDDEN,
                // PERMISSION_DENIED
                code: 7,
                kind: "about:blank",
                title: "Forbidden",
                detail: None,
                violated: Vec::new(),
            },
            Ruling::Fault(_) => Self {
                status: StatusCode::SERVICE_UNAVAILABLE,
                // UNAVAILABLE
                code: 14,
                kind: REDUCED_CAPACITY,
                title: "Request cannot be satisfied due to temporary server capacity constraints",
                detail: None,
                violated: Vec::new(),
            },
        }
    }

    /// Problem details (RFC 9457). Names hold neither quotes nor backslashes nor control characters, so that JSON takes
    /// them as they are.
    pub(super) fn json(&self) -> String {
        let Self { kind, title, .. } = self;
        let status = self.status.as_u16();
        let mut json = format!("{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{status}");
        if let Some(detail) = &self.detail {
            json.push_str(&format!(",\"detail\":\"{detail}\""));
        }
        if !self.violated.is_empty() {
            let names: Vec<_> = self
                .violated
                .iter()
                .map(|name| format!("\"{name}\""))
                .collect();
            json.push_str(&format!(",\"violated-policies\":[{}]", names.join(",")));
        }
        json.push('}');
        json
    }

    /// A line for people.
    pub(crate) fn sentence(&self, delay: Delay) -> String {
        let mut sentence = match &self.detail {
            Some(detail) => detail.clone(),
            None => format!("{}.", self.title),
        };
        if !self.violated.is_empty() {
            sentence.push_str(&format!(" Exceeded: {}.", self.violated.join(", ")));
        }
        match delay.seconds() {
            Some(1) => sentence.push_str(" Try again in a second."),
            Some(seconds) => sentence.push_str(&format!(" Try again in {seconds} seconds.")),
            None => {}
        }
        sentence
    }
}
