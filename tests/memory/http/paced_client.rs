//! A client that goes by `RateLimit` alone gets what the quota allows, and is not rejected.

use crate::http::support::*;
use tollgate::clock::Clock;

/// For how many periods clients send.
const PERIODS: u32 = 50;

/// Counts what is admitted to a client that retries as soon as it may.
async fn eager((layer, clock): (RateLimitLayer, ManualClock), time: Duration) -> u64 {
    let end = clock.now() + time;
    let mut admitted = 0;
    while clock.now() < end {
        let decision = layer.limiter().check(Key::global()).await;
        match decision.retry_after() {
            _ if decision.is_admitted() => admitted += 1,
            RetryAfter::In(wait) => clock.advance(wait),
            other => panic!("{other:?}"),
        }
    }
    admitted
}

/// Counts what is admitted to a client that reads `r` and `t`, sends `r` requests within `t`, each in the middle of its part,
/// and reads again; and how often it is rejected.
async fn steady((layer, clock): (RateLimitLayer, ManualClock), time: Duration) -> (u64, u64) {
    let (app, end) = (hello(&layer), clock.now() + time);
    let (mut admitted, mut rejected) = (0, 0);
    // Nothing is known before the first response.
    let (mut r, mut t) = (0, 0);
    while clock.now() < end {
        let part = secs(t) / r.max(1) as u32;
        // With none left, the next request is sent when the wait is over.
        clock.advance(if r > 0 { part / 2 } else { part });
        for sent in 0..r.max(1) {
            if sent > 0 {
                clock.advance(part);
            }
            let response = send(&app, to("/")).await;
            match response.status {
                StatusCode::OK => admitted += 1,
                _ => rejected += 1,
            }
            let shown = response.field("ratelimit");
            let number = |name: &str| {
                let mut parts = shown.split(';').filter_map(|part| part.strip_prefix(name));
                parts.next().and_then(|number| number.parse::<u64>().ok())
            };
            if sent + 1 >= r {
                (r, t) = (number("r=").expect(&shown), number("t=").expect(&shown));
                break;
            }
        }
    }
    (admitted, rejected)
}

#[tokio::test]
async fn a_client_that_spreads_r_requests_over_t_seconds_is_not_rejected() {
    let mut failed = Vec::new();
    let quotas = "10/10s, 100/min, 100/min burst 10, 20/min burst 60, 50/h, 7/day";
    for quota in quotas.split(", ") {
        let strategies = StrategyKind::ALL.into_iter();
        for strategy in strategies.filter(|kind| kind.is_even() || !quota.contains("burst")) {
            let policy = strategy.of(shared("burst", quota));
            let time = policy.quota().period() * PERIODS;
            let most = eager(layer([policy.clone()]), time).await;
            let (admitted, rejected) = steady(layer([policy]), time).await;
            let case = format!("{quota}, {strategy:?}: {admitted} of {most}, {rejected} rejected");
            if rejected > 0 || admitted * 100 < most * 95 {
                failed.push(case);
            }
        }
    }
    assert_eq!(failed, Vec::<String>::new());
}
