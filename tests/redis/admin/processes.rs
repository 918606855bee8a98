//! Changes through the API of one process hold in the others, once their cached rejections are stale.

use tollgate_tests::prelude::*;

use crate::admin::support::*;

/// The staleness of cached rejections.
const STALENESS: Duration = ms(200);

/// The limiter of a process.
fn process(server: &Server) -> Limiter {
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(STALENESS);
    Limiter::builder()
        .store(store.build().expect("a store"))
        .policy(Policy::new("api", Quota::requests(2).per_day()).key(extract::header("x-api-key")))
        // By hand only: a rejection that a ban counts is not cached.
        .policy(Policy::block_list("abuse").key(extract::header("x-api-key")))
        .build()
        .expect("a limiter")
}

fn keys() -> Keys {
    let key = Key::secret("sk_1");
    Keys::from(vec![("api", key), ("abuse", key)])
}

async fn is_admitted(limiter: &Limiter) -> bool {
    limiter.check(keys()).await.is_admitted()
}

/// Waits until both processes admit the key, each one request.
async fn until_admitted(limiters: &[Limiter; 2]) {
    for limiter in limiters {
        until("the key is admitted", async || is_admitted(limiter).await).await;
    }
}

#[tokio::test]
async fn a_reset_a_credit_a_block_and_its_end_hold_in_both_processes() {
    let server = Server::start();
    let both = [process(&server), process(&server)];
    let [one, other] = &both;
    let api = Api::of(one);
    // Both have cached that the key is rejected.
    assert!(one.check(keys()).times(2).await.is_admitted());
    assert!(!is_admitted(one).await && !is_admitted(other).await);

    api.done("/reset", about("api", "sk_1")).await;
    until_admitted(&both).await;
    assert!(!is_admitted(one).await && !is_admitted(other).await);

    let credit = json!({"policy": "api", "key": "sk_1", "units": 2});
    assert_eq!(api.done("/credit", credit).await["credited"], 2);
    until_admitted(&both).await;

    api.done("/reset", about("api", "sk_1")).await;
    let block = json!({"policy": "abuse", "key": "sk_1", "seconds": 3_600});
    let blocked = api.done("/block", block).await;
    assert!(blocked["blocked"][0]["ends_at"].is_string());
    for limiter in &both {
        until("the ban rejects the key", async || {
            let decision = limiter.check(keys()).await;
            decision.policy("abuse").expect("a ban").rejected()
        })
        .await;
    }
    // The API of the other process shows it too.
    let status = Api::of(other).done("/peek", about("abuse", "sk_1")).await;
    assert_eq!(status["would_admit"], false);

    let unblocked = api.done("/unblock", json!({"key": "sk_1"})).await;
    assert_eq!(unblocked["before"][0]["would_admit"], false);
    until_admitted(&both).await;
}
