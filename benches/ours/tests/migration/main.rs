//! The programs of other crates in the guide to migration are these, which compile; those that replace them count alike.

mod governor_limiter;
mod tower_governor_app;

use std::{num::NonZeroU32, time::Duration};

use governor::{RateLimiter, clock::FakeRelativeClock};
use tollgate::{Limiter, ManualClock, MemoryStore, Policy};

const GUIDE: &str = include_str!("../../../../docs/guide/migration.md");

#[test]
fn the_guide_to_migration_prints_the_programs_that_it_replaces() {
    for program in [
        include_str!("governor_limiter.rs"),
        include_str!("tower_governor_app.rs"),
    ] {
        assert!(
            GUIDE.contains(&format!("```text\n{program}```")),
            "{program}"
        );
    }
}

#[tokio::test]
async fn the_programs_of_other_crates_admit_their_bursts() {
    let limiter = governor_limiter::limiter();
    assert!((0..100).all(|_| governor_limiter::is_admitted(&limiter, "alice")));
    let _: axum::Router = tower_governor_app::app();
}

/// Sends requests at uneven intervals to both; returns how many were admitted and rejected.
async fn compare(before: governor::Quota, after: tollgate::Quota) -> [usize; 2] {
    let before_clock = FakeRelativeClock::default();
    let before = RateLimiter::direct_with_clock(before, before_clock.clone());
    let after_clock = ManualClock::default();
    let after = Limiter::builder()
        .store(MemoryStore::builder().clock(after_clock.clone()).build())
        .policy(Policy::new("jobs", after))
        .build()
        .expect("a policy");
    let mut decisions = [0; 2];
    let mut random: u32 = 1;
    for n in 0..10_000 {
        let is_admitted = after.check("alice").await.is_admitted();
        assert_eq!(before.check().is_ok(), is_admitted, "{n}");
        decisions[usize::from(is_admitted)] += 1;
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Mostly too fast, and sometimes idle.
        let step = match random >> 24 {
            0 => 3_000,
            more => u64::from(more / 16),
        };
        before_clock.advance(Duration::from_millis(step));
        after_clock.advance(Duration::from_millis(step));
    }
    decisions
}

#[tokio::test]
async fn the_programs_that_replace_them_admit_the_same_requests() {
    let number = |n| NonZeroU32::new(n).expect("not zero");
    let before = governor::Quota::per_second(number(50)).allow_burst(number(100));
    let after = tollgate::Quota::requests(50).per_second().burst(100);
    let decisions = compare(before, after).await;
    assert!(
        decisions.iter().all(|count| *count > 1_000),
        "{decisions:?}"
    );

    let interval = Duration::from_millis(500);
    let before = governor::Quota::with_period(interval).expect("an interval");
    let after = tollgate::Quota::requests(1).per(interval).burst(8);
    let decisions = compare(before.allow_burst(number(8)), after).await;
    assert!(decisions.iter().all(|count| *count > 100), "{decisions:?}");
}
