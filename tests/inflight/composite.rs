//! In-flight limits beside rates: all or nothing.

use tollgate::{Gcra, Policy, Quota, extract};

use crate::support::{
    Books, LONG, PLACES, check, counted, fill, free, left_of, places, places_of, until_free,
};

fn rate(requests: u64) -> Policy {
    let policy = Policy::new("rate", Quota::requests(requests).per_hour());
    policy.key(extract::global()).strategy(Gcra)
}

#[tokio::test]
async fn a_request_rejected_by_the_rate_holds_no_permit() {
    for books in Books::both() {
        for policies in [[rate(4), places(LONG)], [places(LONG), rate(4)]] {
            let limiter = books.limiter(policies);
            let held = fill(&limiter).await;
            assert_eq!(held.len(), 4);
            for _ in 0..3 {
                let refused = check(&limiter).await;
                assert!(refused.policy("rate").expect("a verdict").rejected());
                assert!(!refused.policy("places").expect("a verdict").rejected());
            }
            assert_eq!(free(&limiter).await, PLACES - 4, "{}", books.name());
            drop(held);
            until_free(&limiter, PLACES).await;
            // Permits come back; what the rate counted stays.
            assert_eq!(left_of(&limiter, "rate").await, 0);
            let _ = limiter
                .reset(tollgate::Key::global())
                .await
                .expect("an answer");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_permit_is_not_charged_by_the_rate() {
    for books in Books::both() {
        for policies in [
            [rate(100), places_of(2, LONG)],
            [places_of(2, LONG), rate(100)],
        ] {
            let limiter = books.limiter(policies);
            let held = fill(&limiter).await;
            assert_eq!(held.len(), 2);
            for _ in 0..5 {
                let refused = check(&limiter).await;
                assert!(refused.policy("places").expect("a verdict").rejected());
                assert!(!refused.policy("rate").expect("a verdict").rejected());
            }
            assert_eq!(left_of(&limiter, "rate").await, 98, "{}", books.name());
            drop(held);
            until_free(&limiter, 2).await;
            let _ = limiter
                .reset(tollgate::Key::global())
                .await
                .expect("an answer");
        }
    }
}

#[tokio::test]
async fn two_in_flight_limits_are_taken_and_released_together() {
    for books in Books::both() {
        let narrow = Policy::new("narrow", Quota::concurrent(3)).key(extract::global());
        let limiter = books.limiter([places(LONG), narrow]);
        let held = fill(&limiter).await;
        assert_eq!(held.len(), 3);
        assert_eq!(free(&limiter).await, PLACES - 3);
        drop(held);
        until_free(&limiter, PLACES).await;
        assert_eq!(left_of(&limiter, "narrow").await, 3, "{}", books.name());
    }
}

#[tokio::test]
async fn several_requests_at_once_are_charged_in_full_under_both() {
    for books in Books::both() {
        let limiter = books.limiter([rate(7), places(LONG)]);
        let several = limiter.check(tollgate::Key::global()).times(50).await;
        assert!(counted(&several));
        assert_eq!(several.admitted(), 7, "{}", books.name());
        assert_eq!(free(&limiter).await, PLACES - 7);
        drop(several);
        until_free(&limiter, PLACES).await;
        assert_eq!(left_of(&limiter, "rate").await, 0);
    }
}
