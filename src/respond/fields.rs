//! The fields that tell a client how it stands, in each dialect, and `Retry-After`.

use std::{cmp::Reverse, fmt::Write, time::Duration};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER, response::Parts};

use super::{
    Delay, Headers,
    delay::whole_seconds,
    headers::{DRAFT_06, Dialect, LIMIT, POLICY, Triple, X_RATELIMIT},
};
use crate::{
    clock::Timestamp,
    decision::{Decision, Verdict},
    strategy::Retry,
};

/// Adds the fields of `decision` to a response's head. Lists of layers further in stay: more lines of a list are one list (RFC
/// 9651, 4.2).
pub(crate) fn tell(decision: &Decision, fields: Headers, delay: Delay, head: &mut Parts) {
    let Parts {
        headers,
        extensions,
        ..
    } = head;
    // A layer further in that refused, or a handler, may have said when to come back.
    let latest = said(headers).or(delay.seconds());
    if decision.verdicts().len() > 0 {
        let told = Told {
            decision,
            delay,
            latest: latest.unwrap_or(u64::MAX),
        };
        match (fields.dialect, fields.closest) {
            (Dialect::None, _) => {}
            (Dialect::Draft, false) => {
                for (name, list) in [(POLICY, told.policies()), (LIMIT, told.limits())] {
                    append(headers, name, list);
                }
            }
            (dialect, closest) => {
                if dialect == Dialect::Draft06 && !closest && is_free(DRAFT_06, headers, extensions)
                {
                    append(headers, POLICY, told.quotas());
                }
                told.closest(dialect, closest, headers, extensions);
            }
        }
    }
    if let (Some(seconds), None) = (delay.seconds(), headers.get(RETRY_AFTER)) {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
}

/// The `Retry-After` that is there already, if it is in seconds.
fn said(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

fn append(headers: &mut HeaderMap, name: HeaderName, list: String) {
    if let Ok(value) = HeaderValue::try_from(list) {
        headers.append(name, value);
    }
}

/// What there is to tell.
struct Told<'a> {
    decision: &'a Decision,
    delay: Delay,
    /// The latest `t` that may be said.
    latest: u64,
}

impl Told<'_> {
    /// `RateLimit-Policy`.
    fn policies(&self) -> String {
        list(self.decision.verdicts(), policy)
    }

    /// `RateLimit`.
    fn limits(&self) -> String {
        list(self.decision.verdicts(), |verdict, list| {
            self.limit(verdict, list)
        })
    }

    /// `RateLimit-Policy` as version 06 of the draft has it: quotas without names.
    fn quotas(&self) -> String {
        list(self.decision.verdicts(), |verdict, list| {
            let _ = write!(list, "{}", verdict.quota().units());
            window(verdict, list);
        })
    }

    /// A member of `RateLimit`. Names hold neither quotes nor backslashes, so that they stand as they are.
    fn limit(&self, verdict: &Verdict<'_>, list: &mut String) {
        let (name, left) = (verdict.policy(), verdict.remaining());
        let _ = write!(list, "\"{name}\";r={left};t={}", self.seconds(verdict));
    }

    /// How long until there is more: the wait where there is one; where more is left than was asked for, until the full
    /// quota is back.
    fn wait(&self, verdict: &Verdict<'_>) -> Duration {
        match verdict.retry() {
            Retry::After(wait) => wait.saturating_add(self.delay.jitter),
            _ => verdict.reset_after(),
        }
    }

    /// The same in whole seconds, never later than `Retry-After`.
    fn seconds(&self, verdict: &Verdict<'_>) -> u64 {
        whole_seconds(self.wait(verdict)).min(self.latest)
    }

    /// Fields that have room for one policy: that of them which is the closest to refusing, in this layer and those
    /// further in.
    fn closest(
        &self,
        dialect: Dialect,
        alone: bool,
        headers: &mut HeaderMap,
        extensions: &mut Extensions,
    ) {
        let Some(verdict) = self.decision.verdicts().min_by_key(nearness) else {
            return;
        };
        let nearness = nearness(&verdict);
        let mut lines = Vec::with_capacity(3);
        match dialect {
            Dialect::Draft | Dialect::None => {
                for (name, list) in [
                    (POLICY, list([verdict], policy)),
                    (LIMIT, list([verdict], |v, list| self.limit(v, list))),
                ] {
                    lines.extend(HeaderValue::try_from(list).map(|value| (name, value)));
                }
            }
            Dialect::Draft06 | Dialect::Seconds | Dialect::Epoch => {
                let reset = match dialect {
                    Dialect::Epoch => epoch(self.decision.at + self.wait(&verdict)),
                    _ => self.seconds(&verdict),
                };
                let values = [verdict.limit(), verdict.remaining(), reset];
                let names = names(dialect);
                lines.extend(names.into_iter().zip(values.map(HeaderValue::from)));
                if dialect == Dialect::Draft06 && alone {
                    let quota = list([verdict], |v, list| {
                        let _ = write!(list, "{}", v.quota().units());
                        window(v, list);
                    });
                    lines.extend(HeaderValue::try_from(quota).map(|value| (POLICY, value)));
                }
            }
        }
        let before = extensions
            .get::<Spoken>()
            .filter(|spoken| spoken.dialect == dialect);
        if let Some(before) = before {
            if before.nearness <= nearness {
                return;
            }
            before.take_back(headers);
        }
        if dialect != Dialect::Draft && names(dialect).iter().any(|name| headers.contains_key(name))
        {
            return;
        }
        for (name, value) in &lines {
            headers.append(name, value.clone());
        }
        extensions.insert(Spoken {
            dialect,
            nearness,
            lines,
        });
    }
}

fn names(dialect: Dialect) -> Triple {
    match dialect {
        Dialect::Draft06 => DRAFT_06,
        _ => X_RATELIMIT,
    }
}

/// Whether nobody but a layer further in has used these fields.
fn is_free(names: Triple, headers: &HeaderMap, extensions: &Extensions) -> bool {
    extensions.get::<Spoken>().is_some() || !names.iter().any(|name| headers.contains_key(name))
}

/// Joins what `write` writes of each.
fn list<'a>(
    verdicts: impl IntoIterator<Item = Verdict<'a>>,
    write: impl Fn(&Verdict<'a>, &mut String),
) -> String {
    let mut list = String::with_capacity(64);
    for verdict in verdicts {
        if !list.is_empty() {
            list.push_str(", ");
        }
        write(&verdict, &mut list);
    }
    list
}

/// A member of `RateLimit-Policy`.
fn policy(verdict: &Verdict<'_>, list: &mut String) {
    let _ = write!(
        list,
        "\"{}\";q={}",
        verdict.policy(),
        verdict.quota().units()
    );
    if verdict.quota().is_concurrent() {
        list.push_str(";qu=\"concurrent-requests\"");
    }
    window(verdict, list);
}

/// A window is whole seconds; of a shorter one there is nothing true to say.
fn window(verdict: &Verdict<'_>, list: &mut String) {
    let period = verdict.quota().period();
    if period >= Duration::from_secs(1) {
        let _ = write!(list, ";w={}", whole_seconds(period));
    }
}

/// Seconds since the Unix epoch, rounded up.
fn epoch(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros())
        .unwrap_or(0)
        .div_ceil(1_000_000)
}

/// How close a policy is to refusing; the closest comes first. One that refused is closer than one that didn't, the
/// longer its wait the more; then it matters how many more such requests would pass.
type Nearness = (u8, u64, Reverse<Duration>);

fn nearness(verdict: &Verdict<'_>) -> Nearness {
    match (verdict.refused(), verdict.cost()) {
        (true, _) => {
            let wait = verdict.retry_after().unwrap_or(Duration::MAX);
            (0, 0, Reverse(wait))
        }
        (false, 0) => (2, verdict.remaining(), Reverse(verdict.reset_after())),
        (false, cost) => (
            1,
            verdict.remaining() / cost,
            Reverse(verdict.reset_after()),
        ),
    }
}

/// What a layer said of its closest policy, for a layer further out to compare: on the response, beside the fields.
#[derive(Clone, Debug)]
struct Spoken {
    dialect: Dialect,
    nearness: Nearness,
    lines: Vec<(HeaderName, HeaderValue)>,
}

impl Spoken {
    /// Takes its lines back, and leaves those of others.
    fn take_back(&self, headers: &mut HeaderMap) {
        for (name, own) in &self.lines {
            let mut others: Vec<_> = headers.get_all(name).iter().cloned().collect();
            let Some(place) = others.iter().rposition(|value| value == own) else {
                continue;
            };
            others.remove(place);
            headers.remove(name);
            for other in others {
                headers.append(name, other);
            }
        }
    }
}
