//! Writes the rate-limit header fields, in each format, and `Retry-After`.

use std::{cmp::Reverse, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Response, header::RETRY_AFTER};

use super::{RateLimitHeaders, RetryDelay, header_buf::HeaderBuf};
use crate::{
    clock::Timestamp,
    headers::{HeaderFormat, LIMIT, POLICY, X_RATELIMIT},
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
    if decision.policies().len() > 0 {
        let context = HeaderContext {
            decision,
            delay,
            max_reset_s: max_reset_s.unwrap_or(u64::MAX),
        };
        match fields.format {
            HeaderFormat::Draft => context.write_lists(headers),
            HeaderFormat::XRatelimit => context.write_x_ratelimit(response),
            HeaderFormat::OpenAi | HeaderFormat::Anthropic => context.write_named(fields, headers),
            HeaderFormat::None | HeaderFormat::Custom(_) => {}
        }
    }
    let headers = response.headers_mut();
    if let Some(seconds) = seconds.filter(|_| !already_set)
        && let Ok(seconds) = HeaderValue::from_str(itoa::Buffer::new().format(seconds))
    {
        headers.insert(RETRY_AFTER, seconds);
    }
    if let HeaderFormat::Custom(write) = &fields.format {
        write(decision, headers);
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

/// What the fields of one response are written from.
struct HeaderContext<'a> {
    decision: &'a Decision,
    delay: RetryDelay,
    /// Upper bound of `t`, in seconds: `Retry-After`.
    max_reset_s: u64,
}

impl HeaderContext<'_> {
    /// Writes `RateLimit-Policy` and `RateLimit`, which list all policies.
    fn write_lists(&self, headers: &mut HeaderMap) {
        append(headers, POLICY, policy_header(self.decision));
        let limits = join_members(self.decision.one_per_policy(), |policy, list| {
            self.limit_member(policy, list)
        });
        append(headers, LIMIT, limits);
    }

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
            for (name, value) in names.iter().zip(values) {
                append(headers, name.clone(), value);
            }
        }
    }

    /// Writes the fields of the policy that is closest to rejecting, of this layer and of inner ones.
    fn write_x_ratelimit<B>(&self, response: &mut Response<B>) {
        let Some(decision) = self.decision.policies().min_by_key(closeness) else {
            return;
        };
        let closeness = closeness(&decision);
        let is_decided = match response.extensions().get::<ShownPolicy>() {
            Some(inner) => inner.0 <= closeness,
            // Fields of others, such as those of an upstream, stay.
            None => X_RATELIMIT
                .iter()
                .any(|name| response.headers().contains_key(name)),
        };
        if is_decided {
            return;
        }
        response.extensions_mut().insert(ShownPolicy(closeness));
        let status = decision.status();
        let reset = whole_seconds(self.reset(status));
        let values = [shown_limit(&decision), status.remaining, reset];
        for (name, value) in X_RATELIMIT.into_iter().zip(values) {
            response.headers_mut().insert(name, value.into());
        }
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
    // A window is in whole seconds; a shorter one is left out.
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

/// Which policy the single-valued fields of a response describe, in its extensions: an outer layer whose policy is closer
/// replaces them.
#[derive(Clone, Copy, Debug)]
struct ShownPolicy(Closeness);

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
