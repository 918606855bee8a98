//! From the outcomes of descriptors to a response.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::json;

use super::{
    Shared, metadata,
    metrics::Counts,
    plan::{Limited, Outcome, Standing, Unlimited},
    tree::Counted,
};
use crate::proto::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse,
};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

impl Shared {
    pub(super) fn response(
        &self,
        request: &RateLimitRequest,
        outcomes: &[Outcome],
    ) -> RateLimitResponse {
        outcomes.iter().for_each(|outcome| self.record(outcome));
        let verdict = self.verdict(outcomes);
        let mut response = RateLimitResponse {
            overall_code: code(verdict != Verdict::Pass).into(),
            statuses: outcomes.iter().map(Outcome::status).collect(),
            ..RateLimitResponse::default()
        };
        if self.settings.response_details {
            add_details(&mut response, outcomes, verdict);
        }
        if self.settings.dynamic_metadata {
            let passed = outcomes.iter().filter(|outcome| !outcome.is_over());
            let passed = passed.filter_map(Outcome::metadata);
            response.dynamic_metadata = Some(metadata::of_request(request, passed));
        }
        response
    }

    fn record(&self, outcome: &Outcome) {
        let Some((limited, _, standing)) = outcome.strictest() else {
            return;
        };
        if limited.is_credit {
            return;
        }
        let counts = Counts {
            cost: limited.cost,
            limit: standing.limit,
            remaining: standing.remaining,
            over: standing.over,
            shadow: limited.is_shadow(),
        };
        self.metrics.record(&limited.counters, counts);
    }

    /// Whether a descriptor is over its limit, or all are that are in quota mode.
    fn verdict(&self, outcomes: &[Outcome]) -> Verdict {
        let is_quota = |outcome: &&Outcome| match outcome {
            Outcome::Unlimited(Unlimited::ByRule) => false,
            Outcome::Unlimited(_) => self.settings.quota_mode,
            Outcome::Limited(limited, _) => self.settings.quota_mode || limited.is_quota(),
        };
        let (quotas, limits): (Vec<_>, Vec<_>) = outcomes.iter().partition(is_quota);
        let quotas_are_over = !quotas.is_empty() && quotas.iter().all(|outcome| outcome.is_over());
        let limits_over = || limits.iter().filter(|outcome| outcome.is_over());
        let over = quotas_are_over || limits_over().next().is_some();
        if !over || self.settings.shadow_mode {
            return Verdict::Pass;
        }
        // Until all limits and one of the quotas have room.
        let mut waits = limits_over().map(|outcome| outcome.retry_seconds());
        let limits = waits.try_fold(0, |longest, wait| Some(wait?.max(longest)));
        let quota = if quotas_are_over {
            quotas
                .iter()
                .filter_map(|outcome| outcome.retry_seconds())
                .min()
        } else {
            Some(0)
        };
        Verdict::Over(limits.zip(quota).map(|(limits, quota)| limits.max(quota)))
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    /// With the seconds until a retry passes; `None` if it never does.
    Over(Option<u64>),
}

impl Outcome {
    /// The limit that it is over, the one with the longest wait of several; or else that with the fewest units left.
    fn strictest(&self) -> Option<(&Limited, &Counted, &Standing)> {
        let Self::Limited(limited, limits) = self else {
            return None;
        };
        let rank = |standing: &Standing| {
            if standing.over {
                (0, u64::MAX - standing.reset_seconds)
            } else {
                (1, standing.remaining)
            }
        };
        let (info, standing) = limits.iter().min_by_key(|(_, standing)| rank(standing))?;
        Some((limited, info, standing))
    }

    /// Whether it is over a limit that is not in shadow mode.
    fn is_over(&self) -> bool {
        match self {
            Self::Unlimited(_) => false,
            Self::Limited(limited, limits) => {
                !limited.is_shadow() && limits.iter().any(|(_, standing)| standing.over)
            }
        }
    }

    /// The seconds until all limits that it is over admit its cost; `None` if one never does.
    fn retry_seconds(&self) -> Option<u64> {
        let Self::Limited(_, limits) = self else {
            return Some(0);
        };
        let mut over = limits.iter().filter(|(_, standing)| standing.over);
        over.try_fold(0, |longest, (_, standing)| {
            standing
                .may_retry
                .then_some(standing.reset_seconds.max(longest))
        })
    }

    fn metadata(&self) -> Option<&prost_types::Struct> {
        match self {
            Self::Unlimited(_) => None,
            Self::Limited(limited, _) => limited.rule.as_ref()?.metadata.as_ref(),
        }
    }

    fn status(&self) -> DescriptorStatus {
        let Some((_, info, standing)) = self.strictest() else {
            let limit_remaining = match self {
                Self::Unlimited(Unlimited::ByRule) => u32::MAX,
                _ => 0,
            };
            return DescriptorStatus {
                code: Code::Ok.into(),
                limit_remaining,
                ..DescriptorStatus::default()
            };
        };
        let seconds = i64::try_from(standing.reset_seconds).unwrap_or(i64::MAX);
        DescriptorStatus {
            code: code(self.is_over()).into(),
            current_limit: Some(RateLimit {
                requests_per_unit: clamp(standing.limit),
                unit: info.unit.map_or(0, |unit| unit as i32),
                name: info.name.as_ref().to_owned(),
            }),
            limit_remaining: clamp(standing.remaining),
            duration_until_reset: Some(prost_types::Duration { seconds, nanos: 0 }),
        }
    }
}

/// Adds the fields `RateLimit`, `RateLimit-Policy` and `Retry-After`, and the body of a rejection.
fn add_details(response: &mut RateLimitResponse, outcomes: &[Outcome], verdict: Verdict) {
    let limits = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Limited(limited, limits) if !limited.is_shadow() => Some(limits),
        _ => None,
    });
    // Of several keys under one limit that which is over it, or closest to it.
    let mut shown = BTreeMap::<&str, (&Counted, &Standing)>::new();
    for (info, standing) in limits.flatten() {
        let rank = |standing: &Standing| (!standing.over, standing.remaining);
        let entry = shown.entry(info.public_name()).or_insert((info, standing));
        if rank(standing) < rank(entry.1) {
            *entry = (info, standing);
        }
    }
    if shown.is_empty() {
        return;
    }
    let (mut policies, mut limits) = (String::new(), String::new());
    for (name, (info, standing)) in &shown {
        let separator = if policies.is_empty() { "" } else { ", " };
        let window = info.period_seconds;
        let Standing {
            limit: quota,
            remaining,
            reset_seconds,
            ..
        } = standing;
        // Writing to a string can't fail.
        let _ = write!(policies, "{separator}\"{name}\";q={quota};w={window}");
        let _ = write!(
            limits,
            "{separator}\"{name}\";r={remaining};t={reset_seconds}"
        );
    }
    let fields = &mut response.response_headers_to_add;
    fields.push(field("ratelimit-policy", policies));
    fields.push(field("ratelimit", limits));
    let Verdict::Over(wait) = verdict else {
        return;
    };
    if let Some(wait) = wait {
        fields.push(field("retry-after", wait.to_string()));
    }
    fields.push(field("content-type", "application/problem+json".to_owned()));
    let exceeded = shown.iter().filter(|(_, (_, standing))| standing.over);
    let names: Vec<&str> = exceeded.map(|(name, _)| *name).collect();
    let problem = json!({
        "type": QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": names,
    });
    response.raw_body = problem.to_string().into_bytes();
}

fn field(key: &str, value: String) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value,
        raw_value: Vec::new(),
    }
}

const fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

fn clamp(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
