//! Lists, which stand before all queues.

use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

/// One a second, and no names on its lists.
fn listed(list: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> (Limiter, Time) {
    let policy = policy("p", "1/s burst 1");
    let (store, time) = Time::start();
    let builder = list(Limiter::builder().store(store));
    (stores::limiter(builder, [policy]), time)
}

fn is_denied(rejected: &Rejected) -> bool {
    matches!(rejected.decision().kind(), DecisionKind::DenyListed)
        && rejected.retry_after() == RetryAfter::Never
}

#[tokio::test(start_paused = true)]
async fn a_denied_client_is_rejected_at_once_also_behind_other_waiters() {
    let denied = KeyList::new("p", []);
    let (limiter, time) = listed(|limiter| limiter.deny(denied.clone()));
    let _ = wait(&limiter).await.expect("the first");
    let [mut head, mut second] = [(); 2].map(|()| queued(wait(&limiter)));
    denied.replace([KEY]);
    let sent = time.calls();
    let rejected = wait(&limiter).await.expect_err("denied");
    assert!(is_denied(&rejected), "{rejected:?}");
    assert_eq!((time.passed(), time.calls()), (ms(0), sent));
    // Earlier waiters are decided in their turn.
    tokio::time::advance(ms(1_000)).await;
    for waiter in [&mut head, &mut second] {
        let rejected = poll_once(waiter).expect("its turn").expect_err("denied");
        assert!(is_denied(&rejected), "{rejected:?}");
    }
    assert_eq!(time.calls(), sent);
    denied.replace([]);
    assert_eq!(left(&limiter, "p").await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_allowed_client_passes_at_once_and_costs_nothing() {
    let allowed = KeyList::new("p", []);
    let (limiter, time) = listed(|limiter| limiter.allow(allowed.clone()));
    let _ = wait(&limiter).await.expect("the first");
    let mut head = queued(wait(&limiter));
    allowed.replace([KEY]);
    for _ in 0..3 {
        let _ = wait(&limiter).await.expect("admitted");
    }
    assert_eq!(time.passed(), ms(0));
    assert!(poll_once(&mut head).is_none());
    allowed.replace([]);
    let _ = head.await.expect("a turn");
    assert_eq!(time.passed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn an_address_is_matched_against_lists_and_not_counted() {
    let denied = AddressList::new(["192.0.2.0/24"]).expect("a list");
    let (limiter, time) = listed(|limiter| limiter.deny(denied.clone()));
    let from = |last| wait(&limiter).address([198, 51, 100, last].into());
    let rejected = wait(&limiter).address([192, 0, 2, 1].into()).await;
    assert!(is_denied(&rejected.expect_err("denied")));
    let _ = from(1).await.expect("the first");
    let [mut first, mut second] = [1, 2].map(|last| queued(from(last)));
    // One is denied while it waits; the other, behind it, has an address of its own.
    denied.replace(["198.51.100.1"]).expect("a list");
    tokio::time::advance(ms(1_000)).await;
    let rejected = poll_once(&mut first).expect("its turn");
    assert!(is_denied(&rejected.expect_err("denied")));
    let _ = poll_once(&mut second).expect("its turn").expect("admitted");
    assert_eq!(left(&limiter, "p").await, 0);
    let rejected = from(1).await.expect_err("denied");
    assert!(is_denied(&rejected));
    assert_eq!(time.passed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_head_that_is_on_no_list_waits_for_its_turn() {
    let head = Request::new(()).into_parts().0;
    let (limiter, time) = listed(|limiter| limiter.deny(KeyList::new("p", [Key::new("mallory")])));
    let turns = join_all((0..4).map(|_| wait(&limiter).parts(&head).into_future())).await;
    assert!(turns.iter().all(Result::is_ok), "{turns:?}");
    assert_eq!(time.passed(), ms(3_000));
}
