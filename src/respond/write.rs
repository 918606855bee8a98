//! Writes the rate-limit header fields, in each format, and `Retry-After`.

use std::{cmp::Reverse, mem, time::Duration};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Response, header::RETRY_AFTER};

use super::{RateLimitHeaders, RetryDelay, header_buf::HeaderBuf};
use crate::{
    clock::Timestamp,
    headers::{
        DRAFT_06, HeaderFormat, LIMIT, POLICY, X_RATELIMIT, X_RATELIMIT_AFTER,
        X_RATELIMIT_WHITELISTED,
    },
    limiter::{Decision, PolicyDecision},
    quota::Quota,
    strategy::{QuotaStatus, RetryAfter, whole_seconds},
};

/// The most by which the end of a window on Redis exceeds its period.
const ROUNDING: Duration = Duration::from_millis(2);

/// Adds the fields of `decision` to a response. Lists of inner layers stay: several lines of a list are one list (RFC 9651,
/// 4.2).
pub(crate) fn write_headers<B>(
    decision: &Decision,
    fields: &RateLimitHeaders,
    delay: RetryDelay,
    response: &mut Response<B>,
) {
    let headers = response.headers_mut();
    let seconds = delay.seconds();
    // An inner layer that rejected the request, or a handler, may have set it.
    let present = headers.get(RETRY_AFTER);
    let already_set = present.is_some();
    let max_reset_s = present.and_then(parse_retry_after).or(seconds);
    if decision.policies().len() > 0 && fields.format != HeaderFormat::None {
        let context = HeaderContext {
            decision,
            delay,
            max_reset_s: max_reset_s.unwrap_or(u64::MAX),
        };
        if fields.format == HeaderFormat::Draft && !fields.closest {
            append(headers, POLICY, policy_header(decision));
            let limits = join_members(decision.one_per_policy(), |policy, list| {
                context.limit_member(policy, list)
            });
            append(headers, LIMIT, limits);
        } else if !fields.format.groups().is_empty() {
            context.write_named(fields, headers);
        } else {
            let mut extensions = mem::take(response.extensions_mut());
            context.write_closest(fields, response.headers_mut(), &mut extensions);
            *response.extensions_mut() = extensions;
        }
    }
    if fields.format == HeaderFormat::TowerGovernor
        && decision.is_admitted()
        && decision.policies().len() == 0
    {
        let headers = response.headers_mut();
        headers.insert(X_RATELIMIT_WHITELISTED, HeaderValue::from_static("true"));
    }
    if let Some(seconds) = seconds.filter(|_| !already_set)
        && let Ok(seconds) = HeaderValue::from_str(itoa::Buffer::new().format(seconds))
    {
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
}

/// The value of `Retry-After`, if it is in seconds.
fn parse_retry_after(retry_after: &HeaderValue) -> Option<u64> {
    retry_after.to_str().ok()?.parse().ok()
}

fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.append(name, value);
    }
}

fn named((name, value): (HeaderName, Option<HeaderValue>)) -> Option<(HeaderName, HeaderValue)> {
    Some((name, value?))
}

/// What the fields of one response are written from.
struct HeaderContext<'a> {
    decision: &'a Decision,
    delay: RetryDelay,
    /// Upper bound of `t`, in seconds: `Retry-After`.
    max_reset_s: u64,
}

impl HeaderContext<'_> {
    /// Writes a member of `RateLimit`. Names have no quotes or backslashes, so they need no escapes.
    fn limit_member(&self, decision: &PolicyDecision<'_>, list: &mut HeaderBuf) {
        let status = decision.status();
        list.text("\"").text(decision.policy());
        list.text("\";r=").number(status.remaining);
        list.text(";t=")
            .number(self.effective_window(decision, status));
    }

    /// The seconds within which a client can use no more than what remains. If units refill one by one, that is the time in
    /// which as many refill: a client that spreads its requests over it keeps the policy's rate, and is not rejected.
    fn effective_window(&self, decision: &PolicyDecision<'_>, status: QuotaStatus) -> u64 {
        if status.remaining == 0 || !decision.refills_gradually() {
            return self.seconds(decision.quota(), status);
        }
        let quota = decision.quota();
        let nanos = u128::from(status.remaining).saturating_mul(quota.period().as_nanos());
        let seconds = nanos.div_ceil(u128::from(quota.amount().max(1)) * 1_000_000_000);
        u64::try_from(seconds)
            .unwrap_or(u64::MAX)
            .min(self.max_reset_s)
    }

    /// The time until more is available: until a retry succeeds, or, if the request would be admitted, until the full quota is
    /// available.
    fn wait(&self, quota: Quota, status: QuotaStatus) -> Duration {
        match status.retry_after {
            RetryAfter::In(wait) => wait.saturating_add(self.delay.jitter),
            _ => without_rounding(quota.period(), status.reset_after),
        }
    }

    /// The time until the full quota is available, with the jitter of a rejection.
    fn reset(&self, status: QuotaStatus) -> Duration {
        match status.retry_after {
            RetryAfter::In(_) => status.reset_after.saturating_add(self.delay.jitter),
            _ => status.reset_after,
        }
    }

    /// [`wait`](Self::wait) in whole seconds, at most `Retry-After`.
    fn seconds(&self, quota: Quota, status: QuotaStatus) -> u64 {
        whole_seconds(self.wait(quota, status)).min(self.max_reset_s)
    }

    /// Writes the fields of the policies that `fields` name, but for groups of which the response has a field already.
    fn write_named(&self, fields: &RateLimitHeaders, headers: &mut HeaderMap) {
        let groups = fields.format.groups().iter().zip(fields.named_policies());
        for (names, (_, policy)) in groups {
            let is_named = |decision: &PolicyDecision<'_>| Some(decision.policy()) == policy;
            let Some(decision) = self.decision.one_per_policy().find(is_named) else {
                continue;
            };
            if names.iter().any(|name| headers.contains_key(name)) {
                continue;
            }
            let status = decision.status();
            let reset = self.reset(status);
            let reset = match fields.format {
                HeaderFormat::Anthropic => rfc_3339(decision.decided_at() + reset),
                _ => go_duration(reset).value(),
            };
            let values = [
                Some(HeaderValue::from(shown_limit(&decision))),
                Some(HeaderValue::from(status.remaining)),
                reset,
            ];
            let named = names.iter().cloned().zip(values).filter_map(named);
            headers.extend(named);
        }
    }

    /// Writes the fields of the policy that is closest to rejecting, of this layer and of inner ones.
    fn write_closest(
        &self,
        fields: &RateLimitHeaders,
        headers: &mut HeaderMap,
        extensions: &mut Extensions,
    ) {
        let Some(decision) = self.decision.policies().min_by_key(closeness) else {
            return;
        };
        let format = fields.format;
        let names = match format {
            HeaderFormat::Draft06 => &DRAFT_06[..],
            HeaderFormat::XRatelimit
            | HeaderFormat::XRatelimitEpoch
            | HeaderFormat::TowerGovernor => &X_RATELIMIT,
            // Neither is of one policy.
            HeaderFormat::Draft
            | HeaderFormat::Draft11
            | HeaderFormat::OpenAi
            | HeaderFormat::Anthropic
            | HeaderFormat::None => &[],
        };
        let inner = extensions.remove::<WrittenHeaders>();
        let inner = inner.filter(|inner| inner.format == format);
        let is_used = names.iter().any(|name| headers.contains_key(name));
        if inner.is_none() && is_used {
            return;
        }
        if format == HeaderFormat::Draft06 && !fields.closest {
            append(
                headers,
                POLICY,
                join_members(
                    with_quota(self.decision.one_per_policy()),
                    draft_06_policy_member,
                ),
            );
        }
        let closeness = closeness(&decision);
        if let Some(inner) = inner {
            if inner.closeness <= closeness {
                extensions.insert(inner);
                return;
            }
            inner.remove_from(headers);
        }
        let written = self.headers_of(&decision, fields);
        for (name, value) in &written {
            headers.append(name, value.clone());
        }
        extensions.insert(WrittenHeaders {
            format,
            closeness,
            headers: written,
        });
    }

    /// The fields of one policy.
    fn headers_of(
        &self,
        decision: &PolicyDecision<'_>,
        fields: &RateLimitHeaders,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let (one, status) = ([*decision], decision.status());
        let (names, last) = match fields.format {
            HeaderFormat::Draft
            | HeaderFormat::Draft11
            | HeaderFormat::OpenAi
            | HeaderFormat::Anthropic
            | HeaderFormat::None => {
                let lists = [
                    (POLICY, join_members(with_quota(one), policy_member)),
                    (
                        LIMIT,
                        join_members(one, |policy, list| self.limit_member(policy, list)),
                    ),
                ];
                return lists.into_iter().filter_map(named).collect();
            }
            HeaderFormat::Draft06 => (DRAFT_06, Some(self.seconds(decision.quota(), status))),
            HeaderFormat::XRatelimit => (X_RATELIMIT, Some(whole_seconds(self.reset(status)))),
            HeaderFormat::XRatelimitEpoch => {
                let reset = unix_seconds(decision.decided_at() + self.reset(status));
                (X_RATELIMIT, Some(reset))
            }
            HeaderFormat::TowerGovernor => {
                let [limit, remaining, _] = X_RATELIMIT;
                ([limit, remaining, X_RATELIMIT_AFTER], self.delay.seconds())
            }
        };
        let values = [Some(shown_limit(decision)), Some(status.remaining), last];
        let values = values.map(|value| value.map(HeaderValue::from));
        let single_values = names.into_iter().zip(values).filter_map(named);
        let policy = fields.format == HeaderFormat::Draft06 && fields.closest;
        let policy = policy
            .then(|| {
                named((
                    POLICY,
                    join_members(with_quota(one), draft_06_policy_member),
                ))
            })
            .flatten();
        single_values.chain(policy).collect()
    }
}

/// Joins the members that `write` writes of each policy; `None` if there is none.
fn join_members<'a>(
    decisions: impl IntoIterator<Item = PolicyDecision<'a>>,
    write: impl Fn(&PolicyDecision<'a>, &mut HeaderBuf),
) -> Option<HeaderValue> {
    let mut list = HeaderBuf::new();
    for decision in decisions {
        if !list.is_empty() {
            list.text(", ");
        }
        write(&decision, &mut list);
    }
    list.value()
}

/// `RateLimit-Policy`. It is the same for all requests with the policies' own quotas, for which it is cached.
fn policy_header(decision: &Decision) -> Option<HeaderValue> {
    let join = || join_members(with_quota(decision.one_per_policy()), policy_member);
    match decision.cached_policy_header() {
        Some(cached) => match cached.get() {
            Some(policies) => Some(policies.clone()),
            None => join().map(|policies| cached.get_or_init(|| policies).clone()),
        },
        None => join(),
    }
}

/// The policies with a quota: all but block lists, of which clients see in `RateLimit` alone how long they are blocked.
fn with_quota<'a>(
    decisions: impl IntoIterator<Item = PolicyDecision<'a>>,
) -> impl Iterator<Item = PolicyDecision<'a>> {
    let decisions = decisions.into_iter();
    decisions.filter(|decision| !decision.is_block_list())
}

/// Writes a member of `RateLimit-Policy`.
fn policy_member(decision: &PolicyDecision<'_>, list: &mut HeaderBuf) {
    let quota = decision.quota();
    list.text("\"").text(decision.policy());
    list.text("\";q=").number(quota.amount());
    if quota.is_concurrent() {
        list.text(";qu=\"concurrent-requests\"");
    }
    window_parameter(quota, list);
}

/// Writes a member of `RateLimit-Policy` as in version 06 of the draft: a quota without a name.
fn draft_06_policy_member(decision: &PolicyDecision<'_>, list: &mut HeaderBuf) {
    let quota = decision.quota();
    list.number(quota.amount());
    window_parameter(quota, list);
}

/// Writes the window, in whole seconds. A shorter one is left out.
fn window_parameter(quota: Quota, list: &mut HeaderBuf) {
    let period = quota.period();
    if period >= Duration::from_secs(1) {
        list.text(";w=").number(whole_seconds(period));
    }
}

/// `reset_after`, at most `period` if it exceeds that by rounding only: on Redis a window ends on a whole millisecond. Clients
/// read `t` as a part of `w`.
fn without_rounding(period: Duration, reset_after: Duration) -> Duration {
    let late = reset_after.saturating_sub(period);
    if late < ROUNDING && period >= Duration::from_secs(1) {
        return reset_after.min(period);
    }
    reset_after
}

/// The limit of single-valued fields: a block list has no quota.
fn shown_limit(decision: &PolicyDecision<'_>) -> u64 {
    if decision.is_block_list() {
        0
    } else {
        decision.limit()
    }
}

/// A duration as Go writes it, rounded up to milliseconds: `0s`, `12ms`, `1.5s`, `6m0s`, `23h47m36.648s`.
fn go_duration(duration: Duration) -> HeaderBuf {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    let ms = u64::try_from(ms).unwrap_or(u64::MAX);
    let mut text = HeaderBuf::new();
    if (1..1_000).contains(&ms) {
        text.number(ms).text("ms");
        return text;
    }
    let (minutes, ms) = (ms / 60_000, ms % 60_000);
    if minutes >= 60 {
        text.number(minutes / 60).text("h");
    }
    if minutes > 0 {
        text.number(minutes % 60).text("m");
    }
    text.number(ms / 1_000);
    let digits = [ms / 100 % 10, ms / 10 % 10, ms % 10];
    let significant = digits.iter().rposition(|digit| *digit != 0);
    if let Some(last) = significant {
        text.text(".");
        for digit in &digits[..=last] {
            text.number(*digit);
        }
    }
    text.text("s");
    text
}

/// A date in UTC as in RFC 3339, rounded up to seconds; `None` outside of the years that it has.
fn rfc_3339(at: Timestamp) -> Option<HeaderValue> {
    let seconds = i64::try_from(unix_seconds(at)).ok()?;
    let at = jiff::Timestamp::from_second(seconds).ok()?;
    HeaderValue::try_from(at.to_string()).ok()
}

/// Seconds since the Unix epoch, rounded up.
fn unix_seconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros())
        .unwrap_or(0)
        .div_ceil(1_000_000)
}

/// Sort key of policies; the one that is closest to rejecting comes first. Those that rejected come before others, by the
/// longest wait; the others by how many more requests of the same cost they would admit.
type Closeness = (u8, u64, Reverse<Duration>);

fn closeness(decision: &PolicyDecision<'_>) -> Closeness {
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

/// The fields that a layer wrote of its closest policy, in the extensions of the response: an outer layer whose policy is
/// closer replaces them.
#[derive(Clone, Debug)]
struct WrittenHeaders {
    format: HeaderFormat,
    closeness: Closeness,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl WrittenHeaders {
    /// Removes its fields, and leaves others of the same names.
    fn remove_from(&self, headers: &mut HeaderMap) {
        for (name, own) in &self.headers {
            let mut others: Vec<_> = headers.get_all(name).iter().cloned().collect();
            let Some(index) = others.iter().rposition(|value| value == own) else {
                continue;
            };
            others.remove(index);
            headers.remove(name);
            for other in others {
                headers.append(name, other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(buf: &HeaderBuf) -> String {
        String::from_utf8(buf.body().to_vec()).expect("a text")
    }

    #[test]
    fn durations_are_written_as_go_writes_them_and_rounded_up_to_milliseconds() {
        for (duration, expected) in [
            (Duration::ZERO, "0s"),
            (Duration::from_nanos(1), "1ms"),
            (Duration::from_millis(12), "12ms"),
            (Duration::from_micros(999_001), "1s"),
            (Duration::from_millis(1_500), "1.5s"),
            (Duration::from_millis(1_020), "1.02s"),
            (Duration::from_millis(59_003), "59.003s"),
            (Duration::from_secs(60), "1m0s"),
            (Duration::from_secs(360), "6m0s"),
            (Duration::from_secs(3_600), "1h0m0s"),
            (Duration::from_millis(85_656_648), "23h47m36.648s"),
            (Duration::from_secs(31 * 86_400), "744h0m0s"),
            (Duration::MAX, "5124095576030h25m51.615s"),
        ] {
            assert_eq!(text(&go_duration(duration)), expected, "{duration:?}");
        }
    }

    #[test]
    fn dates_are_rounded_up_to_seconds_and_left_out_after_the_year_9999() {
        for (micros, expected) in [
            (0, Some("1970-01-01T00:00:00Z")),
            (1_800_000_000_000_000, Some("2027-01-15T08:00:00Z")),
            (1_800_000_000_000_001, Some("2027-01-15T08:00:01Z")),
            (i64::MAX, None),
        ] {
            let date = rfc_3339(Timestamp::from_micros(micros));
            let expected = expected.map(HeaderValue::from_static);
            assert_eq!(date, expected, "{micros}");
        }
    }
}
