//! The fields that tell a client how it stands, in each dialect, and `Retry-After`.

use std::{cmp::Reverse, mem, time::Duration};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Response, header::RETRY_AFTER};

use super::{Delay, RateLimitHeaders, delay::whole_seconds, line::Line};
use crate::{
    clock::Timestamp,
    decision::{Decision, PolicyDecision},
    headers::{DRAFT_06, Dialect, LIMIT, POLICY, X_RATELIMIT},
    quota::Quota,
    strategy::{QuotaStatus, RetryAfter},
};

/// How much later than after its period a window ends on Redis, at most.
const ROUNDING: Duration = Duration::from_millis(2);

/// Adds the fields of `decision` to a response. Lists of layers further in stay: more lines of a list are one list (RFC
/// 9651, 4.2).
pub(crate) fn tell<B>(
    decision: &Decision,
    fields: RateLimitHeaders,
    delay: Delay,
    response: &mut Response<B>,
) {
    let headers = response.headers_mut();
    let seconds = delay.seconds();
    // A layer further in that refused, or a handler, may have said when to come back.
    let there = headers.get(RETRY_AFTER);
    let is_said = there.is_some();
    let latest = there.and_then(said).or(seconds);
    if decision.policies().len() > 0 && fields.dialect != Dialect::None {
        let told = Told {
            decision,
            delay,
            latest: latest.unwrap_or(u64::MAX),
        };
        if fields.dialect == Dialect::Draft && !fields.closest {
            append(headers, POLICY, policies(decision));
            let limits = list(decision.policies(), |v, list| told.limit(v, list));
            append(headers, LIMIT, limits);
        } else {
            let mut extensions = mem::take(response.extensions_mut());
            told.closest(fields, response.headers_mut(), &mut extensions);
            *response.extensions_mut() = extensions;
        }
    }
    if let Some(seconds) = seconds.filter(|_| !is_said)
        && let Ok(seconds) = HeaderValue::from_str(itoa::Buffer::new().format(seconds))
    {
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
}

/// The `Retry-After` that is there already, if it is in seconds.
fn said(retry_after: &HeaderValue) -> Option<u64> {
    retry_after.to_str().ok()?.parse().ok()
}

fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.append(name, value);
    }
}

fn line((name, list): (HeaderName, Option<HeaderValue>)) -> Option<(HeaderName, HeaderValue)> {
    Some((name, list?))
}

/// What there is to tell.
struct Told<'a> {
    decision: &'a Decision,
    delay: Delay,
    /// The latest `t` that may be said.
    latest: u64,
}

impl Told<'_> {
    /// A member of `RateLimit`. Names hold neither quotes nor backslashes, so that they stand as they are.
    fn limit(&self, decision: &PolicyDecision<'_>, list: &mut Line) {
        let status = decision.status();
        list.text("\"").text(decision.policy());
        list.text("\";r=").number(status.remaining);
        list.text(";t=")
            .number(self.effective_window(decision, status));
    }

    /// The seconds within which no more than what remains can be used. Of a quota that comes back unit by unit that is
    /// the time in which it lets so many units pass: a client that spreads them over it keeps the policy's rate, is not
    /// rejected, and finds as many when it looks again.
    fn effective_window(&self, decision: &PolicyDecision<'_>, status: QuotaStatus) -> u64 {
        if status.remaining == 0 || !decision.refills_gradually() {
            return self.seconds(decision.quota(), status);
        }
        let quota = decision.quota();
        let nanos = u128::from(status.remaining).saturating_mul(quota.period().as_nanos());
        let seconds = nanos.div_ceil(u128::from(quota.amount().max(1)) * 1_000_000_000);
        u64::try_from(seconds).unwrap_or(u64::MAX).min(self.latest)
    }

    /// How long until there is more: the wait where there is one; where more is left than was asked for, until the full
    /// quota is back.
    fn wait(&self, quota: Quota, status: QuotaStatus) -> Duration {
        match status.retry_after {
            RetryAfter::In(wait) => wait.saturating_add(self.delay.jitter),
            _ => within(quota.period(), status.reset_after),
        }
    }

    /// How long until the full quota is available. Clients that stay away until then are put off like the others.
    fn reset(&self, status: QuotaStatus) -> Duration {
        match status.retry_after {
            RetryAfter::In(_) => status.reset_after.saturating_add(self.delay.jitter),
            _ => status.reset_after,
        }
    }

    /// The wait in whole seconds, never later than `Retry-After`.
    fn seconds(&self, quota: Quota, status: QuotaStatus) -> u64 {
        whole_seconds(self.wait(quota, status)).min(self.latest)
    }

    /// Tells of the one policy that is the closest to refusing, in this layer and those further in.
    fn closest(
        &self,
        fields: RateLimitHeaders,
        headers: &mut HeaderMap,
        extensions: &mut Extensions,
    ) {
        let Some(decision) = self.decision.policies().min_by_key(nearness) else {
            return;
        };
        let dialect = fields.dialect;
        let names = match dialect {
            Dialect::Draft06 => &DRAFT_06[..],
            Dialect::Seconds | Dialect::Epoch => &X_RATELIMIT,
            Dialect::Draft | Dialect::None => &[],
        };
        let before = extensions.remove::<Spoken>();
        let before = before.filter(|before| before.dialect == dialect);
        let is_used = names.iter().any(|name| headers.contains_key(name));
        if before.is_none() && is_used {
            return;
        }
        if dialect == Dialect::Draft06 && !fields.closest {
            append(headers, POLICY, list(self.decision.policies(), quota));
        }
        let nearness = nearness(&decision);
        if let Some(before) = before {
            if before.nearness <= nearness {
                extensions.insert(before);
                return;
            }
            before.take_back(headers);
        }
        let lines = self.lines(&decision, fields);
        for (name, value) in &lines {
            headers.append(name, value.clone());
        }
        extensions.insert(Spoken {
            dialect,
            nearness,
            lines,
        });
    }

    /// The fields that tell of one policy.
    fn lines(
        &self,
        decision: &PolicyDecision<'_>,
        fields: RateLimitHeaders,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let (one, status) = ([*decision], decision.status());
        let (names, reset) = match fields.dialect {
            Dialect::Draft | Dialect::None => {
                let lists = [
                    (POLICY, list(one, policy)),
                    (LIMIT, list(one, |v, list| self.limit(v, list))),
                ];
                return lists.into_iter().filter_map(line).collect();
            }
            Dialect::Draft06 => (DRAFT_06, self.seconds(decision.quota(), status)),
            Dialect::Seconds => (X_RATELIMIT, whole_seconds(self.reset(status))),
            Dialect::Epoch => {
                let reset = epoch(decision.decided_at() + self.reset(status));
                (X_RATELIMIT, reset)
            }
        };
        let values = [decision.limit(), status.remaining, reset];
        let triple = names.into_iter().zip(values.map(HeaderValue::from));
        let policy = fields.dialect == Dialect::Draft06 && fields.closest;
        let policy = policy.then(|| line((POLICY, list(one, quota)))).flatten();
        triple.chain(policy).collect()
    }
}

/// Joins what `write` writes of each.
fn list<'a>(
    decisions: impl IntoIterator<Item = PolicyDecision<'a>>,
    write: impl Fn(&PolicyDecision<'a>, &mut Line),
) -> Option<HeaderValue> {
    let mut list = Line::new();
    for decision in decisions {
        if !list.is_empty() {
            list.text(", ");
        }
        write(&decision, &mut list);
    }
    list.value()
}

/// `RateLimit-Policy`, which is the same for most.
fn policies(decision: &Decision) -> Option<HeaderValue> {
    let written = || list(decision.policies(), policy);
    match decision.cached_policy_header() {
        Some(said) => match said.get() {
            Some(policies) => Some(policies.clone()),
            None => written().map(|policies| said.get_or_init(|| policies).clone()),
        },
        None => written(),
    }
}

/// A member of `RateLimit-Policy`.
fn policy(decision: &PolicyDecision<'_>, list: &mut Line) {
    let quota = decision.quota();
    list.text("\"").text(decision.policy());
    list.text("\";q=").number(quota.amount());
    if quota.is_concurrent() {
        list.text(";qu=\"concurrent-requests\"");
    }
    window(quota, list);
}

/// A member of `RateLimit-Policy` as version 06 of the draft has it: a quota without a name.
fn quota(decision: &PolicyDecision<'_>, list: &mut Line) {
    let quota = decision.quota();
    list.number(quota.amount());
    window(quota, list);
}

/// A window is whole seconds; of a shorter one there is nothing true to say.
fn window(quota: Quota, list: &mut Line) {
    let period = quota.period();
    if period >= Duration::from_secs(1) {
        list.text(";w=").number(whole_seconds(period));
    }
}

/// A window may end some microseconds later than after its period, since on Redis it ends on a whole millisecond: clients read
/// `t` as a part of `w`.
fn within(period: Duration, reset_after: Duration) -> Duration {
    let late = reset_after.saturating_sub(period);
    if late < ROUNDING && period >= Duration::from_secs(1) {
        return reset_after.min(period);
    }
    reset_after
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

fn nearness(decision: &PolicyDecision<'_>) -> Nearness {
    match (decision.rejected(), decision.cost()) {
        (true, _) => {
            let wait = decision.retry_after().duration().unwrap_or(Duration::MAX);
            (0, 0, Reverse(wait))
        }
        (false, 0) => (2, decision.remaining(), Reverse(decision.reset_after())),
        (false, cost) => (
            1,
            decision.remaining() / cost,
            Reverse(decision.reset_after()),
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
