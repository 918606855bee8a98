//! `X-RateLimit-Reset` as a date is one of the wall clock, whatever the store counts by.

use std::collections::BTreeSet;

use crate::http::support::*;
use tollgate_tests::two_clocks::TwoClocks;

const SECOND: i64 = 1_000_000;

#[tokio::test]
async fn a_reset_date_follows_the_wall_clock_also_after_a_step() {
    // The machine began in 1970, and learnt the time from the network.
    let clock = TwoClocks::at(1_000 * SECOND);
    clock.step(1_800_000_000 * SECOND);
    for (policy, expected) in [
        (
            shared("window", "9/min").strategy(FixedWindow),
            "1800001060",
        ),
        (
            shared("calendar", "9/min").strategy(CalendarWindow::utc()),
            "1800001020",
        ),
    ] {
        let layer = RateLimitLayer::builder()
            .store(MemoryStore::builder().clock(clock.clone()).build())
            .policy(policy);
        let layer = layer.built();
        let app = hello(&layer.headers(RateLimitHeaders::x_ratelimit_epoch()));
        let mut resets = BTreeSet::new();
        for _ in 0..3 {
            resets.insert(send(&app, to("/")).await.field("x-ratelimit-reset"));
            clock.pass(ms(6_543).as_micros() as i64);
        }
        assert_eq!(Vec::from_iter(resets), [expected]);
        clock.pass(-3 * 6_543_000);
    }
}
