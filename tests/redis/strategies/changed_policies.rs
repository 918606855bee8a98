//! What becomes of what was used when a policy changes under live keys: every cell of `docs/changing-policies.md`.

use std::{panic::Location, time::Duration};

use tollgate::{Key, Limiter};

use crate::strategies::support::{
    START, StrategyKind, World, admitted_by_store, fresh_key, left, secs, send,
};

/// Ten seconds past a full hour.
pub(crate) const NOW: u64 = START + 10_000_000;

/// A change of one policy in one store: the limiter as it was, and as it is.
pub(crate) struct Change {
    pub(crate) old: Limiter,
    pub(crate) new: Limiter,
    pub(crate) key: Key,
    /// The change and the store, for failures.
    case: String,
}

impl Change {
    /// At `NOW`, `used` units are used by the old policy.
    pub(crate) async fn after(
        world: &World,
        used: u64,
        (old, from): (StrategyKind, &str),
        (new, to): (StrategyKind, &str),
    ) -> Self {
        world.set(NOW);
        let change = Self {
            old: world.single(old, from),
            new: world.single(new, to),
            key: fresh_key(),
            case: format!("{old:?} {from} to {new:?} {to} on {}", world.name()),
        };
        assert!(admitted_by_store(
            &change
                .old
                .charge(change.key, used)
                .await
                .expect("a response")
        ));
        change
    }

    pub(crate) async fn left(&self) -> u64 {
        left(&self.new, self.key).await
    }

    /// The wait of a request under the new policy; zero if it passes.
    pub(crate) async fn wait(&self) -> Duration {
        let seen = self.new.peek(self.key).await.expect("a response");
        let policy = seen.policies().next().expect("a policy");
        policy.retry_after().duration().expect("a wait")
    }

    /// Asserts how many units are left under the new policy.
    #[track_caller]
    pub(crate) fn assert_left(&self, units: u64) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move { assert_eq!(self.left().await, units, "{}, at {caller}", self.case) }
    }

    /// Asserts the [wait](Self::wait).
    #[track_caller]
    pub(crate) fn assert_wait(&self, wait: Duration) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move { assert_eq!(self.wait().await, wait, "{}, at {caller}", self.case) }
    }

    /// Asserts how many of these requests the new policy admits.
    #[track_caller]
    pub(crate) fn assert_admits(&self, admitted: u64, requests: u64) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            let sent = send(&self.new, self.key, requests).await;
            assert_eq!(sent, admitted, "{}, at {caller}", self.case);
        }
    }
}

/// The same change for a strategy and a store.
pub(crate) async fn for_all(
    strategies: &[StrategyKind],
    used: u64,
    from: &str,
    to: &str,
    expect: impl AsyncFn(&World, StrategyKind, &Change),
) {
    for world in World::both() {
        for strategy in strategies {
            let change = Change::after(&world, used, (*strategy, from), (*strategy, to)).await;
            expect(&world, *strategy, &change).await;
        }
    }
}

pub(crate) const EVEN: [StrategyKind; 2] = [StrategyKind::Gcra, StrategyKind::Bucket];
const COUNTED: [StrategyKind; 6] = [
    StrategyKind::Fixed,
    StrategyKind::Calendar,
    StrategyKind::List,
    StrategyKind::Log,
    StrategyKind::Sliding(1),
    StrategyKind::Sliding(10),
];

// More or fewer requests in the same period.

#[tokio::test]
async fn with_another_number_of_requests_an_even_rate_keeps_the_share_that_was_used() {
    for_all(&EVEN, 6, "10/min", "20/min", async |_, _, change| {
        change.assert_left(20 - 12).await;
    })
    .await;
    for_all(&EVEN, 6, "10/min", "5/min", async |_, _, change| {
        change.assert_left(5 - 3).await;
    })
    .await;
}

#[tokio::test]
async fn with_another_number_of_requests_earlier_charges_stay_counted() {
    for_all(&COUNTED, 6, "10/min", "20/min", async |_, _, change| {
        change.assert_left(14).await;
        change.assert_admits(14, 30).await;
    })
    .await;
    for_all(
        &COUNTED,
        6,
        "10/min",
        "5/min",
        async |world, strategy, change| {
            // Never below zero.
            change.assert_left(0).await;
            let expected = match strategy {
                // Its window began with its first request; the calendar's with the minute.
                StrategyKind::Fixed | StrategyKind::List | StrategyKind::Log => secs(60),
                StrategyKind::Calendar => secs(50),
                // Four of six are in when the two-counter window has slid by a third: ceil(6 x 40/60) = 4.
                StrategyKind::Sliding(1) => secs(50 + 20),
                // And here when the bucket of 6 s, in its fifth second, has.
                _ => secs(56) + secs(2),
            };
            change.assert_wait(expected).await;
            world.advance(expected);
            assert!(
                admitted_by_store(&change.new.check(change.key).await),
                "{strategy:?}"
            );
        },
    )
    .await;
}

// Another burst.

#[tokio::test]
async fn with_another_burst_an_even_rate_keeps_the_units_that_were_used() {
    for_all(
        &EVEN,
        6,
        "10/min",
        "10/min burst 20",
        async |_, _, change| {
            change.assert_left(14).await;
        },
    )
    .await;
    for_all(
        &EVEN,
        16,
        "10/min burst 20",
        "10/min",
        async |_, _, change| {
            change.assert_left(0).await;
            // Six more than the new burst are waited for, and then one.
            change.assert_wait(secs(7 * 6)).await;
        },
    )
    .await;
    // More than twice the new burst is no debt that it could have made: all of it is used, and no more.
    for_all(
        &EVEN,
        20,
        "10/min burst 20",
        "10/min burst 5",
        async |_, _, change| {
            change.assert_wait(secs(6)).await;
        },
    )
    .await;
}

#[test]
fn a_burst_is_a_config_error_for_strategies_of_windows() {
    for world in World::both() {
        for strategy in COUNTED {
            let error = world
                .builder()
                .policy(strategy.policy("p", "10/min burst 20"))
                .build();
            let error = error.expect_err("a mistake");
            assert_eq!(error.policy(), Some("p"));
            assert!(
                error.expected().contains("leave it out"),
                "{strategy:?}: {error}"
            );
        }
    }
}

// A longer period.
