//! Stores whose clock steps.

use std::time::Duration;

use crate::support::{
    Books, LIFE, LONG, PLACES, check, counted, expiries, fill, free, places, strand, until,
    until_free,
};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn an_unrenewed_permit_expires_after_its_ttl_and_not_a_microsecond_earlier() {
    for books in Books::both() {
        let limiter = books.limiter([places(LIFE)]);
        strand(&limiter, PLACES as usize);
        books.advance(LIFE - Duration::from_micros(1));
        assert_eq!(free(&limiter).await, 0, "{}", books.name());
        assert!(!counted(&check(&limiter).await));
        books.advance(Duration::from_micros(1));
        assert_eq!(
            fill(&limiter).await.len() as u64,
            PLACES,
            "{}",
            books.name()
        );
    }
}

/// The request that still runs after its permit has expired: the slot may be another request's by then.
#[tokio::test]
async fn a_permit_that_has_expired_is_not_refunded() {
    for books in Books::both() {
        let limiter = books.limiter([places(LONG)]);
        let mut first = check(&limiter).await;
        books.advance(LONG / 2);
        let second = check(&limiter).await;
        assert!(counted(&first) && counted(&second));
        books.advance(LONG / 2);
        let refunded = first.refund(1).await.expect("an answer");
        assert_eq!(refunded[0].units(), 0, "{}", books.name());
        assert_eq!(free(&limiter).await, PLACES - 1, "{}", books.name());
    }
}

/// Whichever call finds the step: a check, or a peek.
#[tokio::test]
async fn a_step_back_of_an_hour_locks_no_caller_out_for_longer_than_one_permit_ttl() {
    for ask in [true, false] {
        for books in Books::both() {
            let limiter = books.limiter([places(LIFE)]);
            strand(&limiter, PLACES as usize);
            books.rewind(HOUR);
            match ask {
                true => assert!(!counted(&check(&limiter).await), "{}", books.name()),
                false => assert_eq!(free(&limiter).await, 0),
            }
            books.advance(LIFE - Duration::from_micros(1));
            assert!(
                !counted(&check(&limiter).await),
                "{}: a step gives no permit",
                books.name()
            );
            books.advance(Duration::from_micros(1));
            assert_eq!(
                fill(&limiter).await.len() as u64,
                PLACES,
                "{}",
                books.name()
            );
        }
    }
}

/// Some permits are free, so that requests after the step get one.
#[tokio::test]
async fn a_permit_acquired_after_a_step_back_lets_earlier_ones_expire_in_time() {
    for books in Books::both() {
        let limiter = books.limiter([places(LIFE)]);
        strand(&limiter, 6);
        books.rewind(HOUR);
        strand(&limiter, 4);
        assert!(!counted(&check(&limiter).await));
        books.advance(LIFE);
        assert_eq!(
            fill(&limiter).await.len() as u64,
            PLACES,
            "{}",
            books.name()
        );
        if let Books::Redis(server, _) = &books {
            assert_eq!(server.immortal_keys(), [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_request_in_flight_when_the_clock_steps_back_keeps_its_permit_and_releases_it() {
    for books in Books::both() {
        let limiter = books.limiter([places(LIFE)]);
        let held = fill(&limiter).await;
        books.rewind(HOUR);
        assert!(!counted(&check(&limiter).await), "{}", books.name());
        if let Books::Redis(server, clock) = &books {
            let ends = clock.micros() + LIFE.as_micros() as u64;
            until("heartbeats tell the new time", async || {
                expiries(server).iter().all(|at| *at == ends)
            })
            .await;
        }
        drop(held);
        until_free(&limiter, PLACES).await;
    }
}
