//! Clocks for tests, and what a first test of one's own does with them.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::http::support::*;
use tokio::time::Instant;
use tollgate::clock::{Clock, SystemClock};

fn policy() -> Policy {
    Policy::new("p", quota("1/s"))
}

fn on(clock: impl Clock, policy: Policy) -> Limiter {
    let store = MemoryStore::builder().clock(clock).build();
    let limiter = Limiter::builder().store(store).policy(policy);
    limiter.built()
}

#[tokio::test(start_paused = true)]
async fn under_paused_time_waits_follow_tokios_clock() {
    let limiter = on(TokioClock::new(), policy());
    let start = Instant::now();
    for seconds in 0..5 {
        let wait = limiter.wait("alice", secs(30));
        assert!(wait.await.is_ok(), "{seconds}");
        let waited = start.elapsed().as_millis();
        // Tokio's timer rounds up to its milliseconds.
        let expected = seconds * 1_000..=seconds * 1_002;
        assert!(expected.contains(&waited), "{waited}");
    }
    assert!(!limiter.check("alice").await.is_admitted());
    tokio::time::advance(secs(1)).await;
    assert!(limiter.check("alice").await.is_admitted());
}

#[tokio::test]
async fn a_manual_clock_begins_where_every_strategy_counts() {
    let begins = ManualClock::default().now();
    assert_eq!(begins, Timestamp::from_micros(1_800_000_000_000_000));
    for strategy in StrategyKind::ALL {
        let policy = strategy.of(policy());
        let printed = format!("{policy:?}");
        let clock = ManualClock::default();
        let limiter = on(clock.clone(), policy);
        for _ in 0..3 {
            assert!(limiter.check("alice").await.is_admitted(), "{printed}");
            assert!(!limiter.check("alice").await.is_admitted(), "{printed}");
            clock.advance(secs(2));
        }
    }
}

#[test]
fn a_system_time_converts_to_a_stores_timestamp() {
    let day = secs(86_400);
    let [next, last] = [UNIX_EPOCH + day, UNIX_EPOCH - day].map(Timestamp::from);
    assert_eq!(next.as_micros(), 86_400_000_000);
    assert_eq!(last.as_micros(), -86_400_000_000);
    let (before, now) = (Timestamp::from(SystemTime::now()), SystemClock.wall());
    assert!(now.since(before) < day && before.since(now) < day);
}

/// rustdoc shows a bare `pub use` of what is public elsewhere too, unless an attribute makes it write it out.
#[test]
fn each_type_on_the_crates_front_page_has_a_summary() {
    let source = include_str!("../../../src/lib.rs");
    let lines: Vec<_> = source.lines().collect();
    let modules = lines
        .iter()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let modules: Vec<_> = modules.collect();
    assert!(modules.contains(&"extract"), "{modules:?}");
    for (place, line) in lines.iter().enumerate() {
        let path = line.strip_prefix("pub use ").unwrap_or_default();
        let module = path.split("::").next().unwrap_or_default();
        if modules.contains(&module) {
            assert_eq!(lines[place - 1], "#[doc(inline)]", "{line}");
        }
    }
}
