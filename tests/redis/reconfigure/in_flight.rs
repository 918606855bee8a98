//! Requests that are in progress during the change finish under the policies they started with.

use tollgate_tests::prelude::*;

use super::*;

fn permits_for(name: &str, n: u64, ttl: u64) -> Policy {
    let permits = Policy::new(name, Quota::concurrent(n)).key(extract::global());
    permits.strategy(Concurrency::with_ttl(secs(ttl)))
}

#[tokio::test]
async fn permits_of_removed_and_altered_policies_count_until_they_are_released() {
    for world in World::both() {
        let limiter = world.limiter([permits_for("a", 2, 600), permits_for("r", 2, 600)]);
        let first = limiter.admit(KEY).await.expect("a permit");
        let second = limiter.admit(KEY).await.expect("a permit");
        replace(&limiter, [window("w", "99/h"), permits_for("a", 1, 600)]);
        let rejected = limiter.admit(KEY).await;
        assert!(!admitted_by_store(&rejected), "2 of 1 are in use");
        drop(first);
        until("it is released", async || used(&limiter, "a").await == 1).await;
        assert!(!admitted_by_store(&limiter.admit(KEY).await));
        replace(
            &limiter,
            [permits_for("r", 5, 600), permits_for("a", 5, 600)],
        );
        until("it is released", async || used(&limiter, "r").await == 1).await;
        assert_eq!(used(&limiter, "a").await, 1);
        drop(second);
        let both = async || used(&limiter, "a").await + used(&limiter, "r").await;
        until("both are", async || both().await == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_renewed_while_it_is_held_also_of_a_removed_policy_and_for_a_shorter_ttl() {
    let limiter = timed([permits_for("p", 1, 30)]);
    let held = limiter.admit(KEY).await.expect("a permit");
    for round in 1..10 {
        replace(&limiter, [window(&format!("q{round}"), "9/h")]);
        tokio::time::sleep(secs(29)).await;
    }
    for ttl in [30, 3, 30] {
        replace(&limiter, [permits_for("p", 1, ttl)]);
        for second in 0..60 {
            assert!(limiter.admit(KEY).await.is_err(), "held, {second} s");
            tokio::time::sleep(secs(1)).await;
        }
    }
    drop(held);
    assert!(limiter.admit(KEY).await.is_ok());
}

#[tokio::test]
async fn a_request_whose_handler_replaces_the_policies_is_settled_under_those_it_began_with() {
    let before = || {
        [
            window("by-hand", "10/h"),
            window("after", "10/h").charge_after(outcome::success),
            window("unless", "10/h").refund_unless(outcome::success),
        ]
    };
    let removing = [window("other", "5/h")];
    // What had the first index has another one now.
    let altering = ["unless", "after", "by-hand"].map(|name| window(name, "20/h"));
    for world in World::both() {
        for (status, charged) in [(StatusCode::OK, 1), (StatusCode::BAD_GATEWAY, 0)] {
            for next in [&removing[..], &altering] {
                let limiter = world.limiter(before());
                limiter.reset(KEY).await.expect("a response");
                let (of_handler, next) = (limiter.clone(), next.to_vec());
                let handler = service_fn(move |request: Request<String>| {
                    replace(&of_handler, next.clone());
                    async move {
                        let admission = request.extensions().get::<Admission>();
                        let admission = admission.expect("an admission").clone();
                        assert_eq!(admission.remaining("unless"), Some(9));
                        let by_hand = admission.policy("by-hand").expect("its policy");
                        by_hand.charge(4).await.expect("a response");
                        by_hand.refund(2).await.expect("a response");
                        assert!(admission.policy("other").is_err());
                        let response = Response::builder().status(status);
                        response.body(String::new())
                    }
                });
                let service = RateLimitLayer::new(limiter.clone()).layer(handler);
                let response = service.oneshot(Request::new(String::new())).await;
                // A charge by outcome is made when the body has ended.
                let body = response.expect("no error").into_body();
                drop(body.collect().await.expect("a body"));
                replace(&limiter, before());
                assert_eq!(used(&limiter, "by-hand").await, 3);
                for name in ["after", "unless"] {
                    let is_settled = async || used(&limiter, name).await == charged;
                    until("it is settled", is_settled).await;
                }
            }
        }
    }
}

/// So many checks that are on their way to a server, which is paused.
async fn pending(server: &Server, limiter: &Limiter, n: usize) -> Vec<Check> {
    assert!(limiter.check(KEY).cost(0).await.is_admitted());
    server.pause();
    let mut pending: Vec<Check> = Vec::new();
    for _ in 0..n {
        let mut check = Box::pin(limiter.check(KEY).into_future());
        assert!((&mut check).now_or_never().is_none());
        pending.push(check);
    }
    pending
}

type Check = Pin<Box<dyn Future<Output = Decision> + Send>>;

#[tokio::test]
async fn decisions_that_are_pending_during_the_change_are_made_by_the_old_policies() {
    let world = World::redis();
    let (server, limiter) = (world.server(), world.limiter([window("p", "3/h")]));
    let waiting = pending(server, &limiter, 6).await;
    let mut batch = limiter.check(KEY).times(5).into_future();
    assert!((&mut batch).now_or_never().is_none());
    replace(&limiter, [window("q", "100/h"), window("p", "5/h")]);
    server.resume();
    let decisions = join_all(waiting).await;
    let admitted = decisions.iter().filter(|one| admitted_by_store(one));
    let admitted = admitted.count() as u64 + batch.await.admitted();
    assert_eq!(admitted, 3, "by the old policies");
    for decision in &decisions {
        let limits: Vec<_> = decision.policies().map(|p| p.limit()).collect();
        assert_eq!(limits, [3]);
    }
    assert_eq!(used(&limiter, "p").await, 3);
    assert_eq!(used(&limiter, "q").await, 0);
    assert_eq!(limiter.check(KEY).times(9).await.admitted(), 2);
    // Those that are dropped after the change leave no charge.
    replace(&limiter, [window("p", "100/h")]);
    let dropped = pending(server, &limiter, 9).await;
    replace(&limiter, [window("q", "100/h")]);
    drop(dropped);
    server.resume();
    replace(&limiter, [window("p", "100/h")]);
    limiter.shutdown(TEST_TIMEOUT).await.expect("all is sent");
    until("all are refunded", async || used(&limiter, "p").await == 5).await;
}

#[tokio::test]
async fn calls_that_were_made_before_the_change_and_are_awaited_after_it_find_their_own_policy() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "100/h"), window("q", "100/h")]);
        assert!(limiter.check(KEY).cost(50).await.is_admitted());
        let [p, q] = ["p", "q"].map(|name| limiter.policy(name).expect(name));
        let credit = q.credit(KEY, 20);
        let check = limiter.check([("q", KEY)]).cost(7);
        let reset = p.reset(KEY);
        let charge = q.charge(KEY, 1);
        let [q_again, p_again] = ["q", "p"].map(|name| window(name, "100/h"));
        replace(&limiter, [window("first", "9/h"), q_again, p_again]);
        assert_eq!(credit.await.expect("a response").units(), 20);
        assert!(check.await.is_admitted());
        charge.await.expect("a response");
        reset.await.expect("a response");
        assert_eq!(used(&limiter, "q").await, 38);
        assert_eq!(used(&limiter, "p").await, 0);
        assert_eq!(used(&limiter, "first").await, 0);
    }
}
