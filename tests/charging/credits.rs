//! Units that are given back by hand.

use tollgate::{CallError, StoreError};

use crate::{
    by::By,
    support::{KEY, World, secs, together, used},
};

#[tokio::test]
async fn a_credit_gives_back_what_is_in_use_also_of_a_debt_and_no_more() {
    for world in World::both() {
        for by in By::ALL {
            let name = format!("{by:?} on {}", world.name());
            let limiter = world.limiter([together(by, "p", "10/min")]);
            let policy = limiter.policy("p").expect("a policy");
            let _ = policy.reset(KEY).await.expect("an answer");
            let _ = policy.charge(KEY, 7).await.expect("an answer");
            let credited = match policy.credit(KEY, 3).await {
                Ok(credited) => credited,
                Err(CallError::Store(StoreError::Unsupported(_))) => {
                    assert!(matches!(by, By::Log | By::List | By::Sliding(_)), "{name}");
                    assert_eq!(used(&limiter, "p").await, 7, "{name}");
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            };
            assert_eq!(credited.policy("p").expect("p").remaining(), 6, "{name}");
            assert_eq!(used(&limiter, "p").await, 4, "{name}");
            policy.credit(KEY, u64::MAX).await.expect("an answer");
            assert_eq!(used(&limiter, "p").await, 0, "{name}");
            // A debt of one capacity.
            let _ = policy.charge(KEY, 20).await.expect("an answer");
            policy.credit(KEY, 12).await.expect("an answer");
            assert_eq!(used(&limiter, "p").await, 8, "{name}");
            world.advance(secs(300));
            policy.credit(KEY, 5).await.expect("an answer");
            assert_eq!(used(&limiter, "p").await, 0, "{name}");
        }
    }
}
