//! A call that waits: what it reads of its request is read once for each set of policies, and its final rejection is counted by
//! bans.

use super::{KEY, closures::Calls, head, hourly};
use crate::http::support::*;

const HOUR: Duration = secs(3_600);

/// A store that counts the requests that it decides.
fn counting() -> (StubStore, Arc<AtomicUsize>) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let store = StubStore::responding(move |op| {
        counted.fetch_add(usize::from(matches!(op, Op::Acquire(_))), Ordering::SeqCst);
        None
    });
    (store, attempts)
}

/// The policies of [`Calls`], and one request in flight at most, so that a wait tries again and again.
fn one_in_flight(calls: &Calls) -> LimiterBuilder {
    let permits = Policy::new("permits", Quota::concurrent(1));
    calls.limiter().policy(permits)
}

type Waiting = tokio::task::JoinHandle<Result<Admission, Rejected>>;

/// A wait that has tried at least five times, behind a permit that is held; calls of closures are counted from its start.
async fn tried_often(calls: &Calls, settings: bool) -> (Limiter, Admission, Waiting) {
    let (store, attempts) = counting();
    let limiter = one_in_flight(calls).store(store).built();
    let held = limiter.admit(("permits", KEY)).await.expect("a permit");
    calls.take();
    let mut wait = limiter.wait(KEY, HOUR).parts(&head("/"));
    if settings {
        wait = wait.cost(1).quota_for("p", hourly(50));
        wait = wait.quota_for("q", hourly(50));
    }
    let waiting = tokio::spawn(wait.into_future());
    let tried_often = async || attempts.load(Ordering::SeqCst) > 5;
    until("it has tried often", tried_often).await;
    (limiter, held, waiting)
}

#[tokio::test(start_paused = true)]
async fn a_wait_reads_its_request_once_however_often_it_tries() {
    for (settings, expected) in [(false, [1, 1, 0, 1, 1, 1]), (true, [1, 1, 0, 0, 0, 0])] {
        let calls = Calls::default();
        let (limiter, held, waiting) = tried_often(&calls, settings).await;
        drop(held);
        let admission = waiting.await.expect("no panic").expect("a permit");
        assert_eq!(calls.take(), expected);
        let units = if settings { (49, 49) } else { (98, 199) };
        let left = |name| admission.remaining(name).expect(name);
        assert_eq!((left("p"), left("q")), units);
        drop(limiter);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_reads_its_request_again_under_new_policies_and_then_no_more() {
    let (calls, next) = (Calls::default(), Calls::default());
    let (limiter, held, waiting) = tried_often(&calls, false).await;
    let replaced = limiter.reconfigure(one_in_flight(&next));
    replaced.expect("valid policies");
    until("it has read its request again", async || next.total() > 0).await;
    drop(held);
    let _admission = waiting.await.expect("no panic").expect("a permit");
    let once = [1, 1, 0, 1, 1, 1];
    assert_eq!((calls.take(), next.take()), (once, once));
}

/// One request an hour, and a ban of those that are rejected once, on a store that counts no rejection by hand.
fn without_final_count(action: impl Into<OnStoreError>) -> Limiter {
    let store = StubStore::responding(|op| {
        (op == Op::ForceAcquire).then(|| StoreResponse::Ready(Err(StoreError::Timeout)))
    });
    let abuse = Policy::new("abuse", hourly(1)).strategy(Ban::for_duration(HOUR));
    Limiter::builder()
        .store(store)
        .policy(Policy::new("p", hourly(1)))
        .policy(abuse)
        .on_store_error(action)
        .built()
}

#[tokio::test]
async fn a_final_rejection_that_the_store_cannot_count_is_handled_as_configured_and_stays_one() {
    for (action, rejecting) in [
        (OnStoreError::Admit, vec!["p"]),
        (OnStoreError::Reject, vec!["p"]),
        (LocalFallback::shared_by(1).into(), vec!["p", "abuse"]),
    ] {
        let text = format!("{action:?}");
        let limiter = without_final_count(action);
        let _ = limiter.wait(KEY, Duration::ZERO).await.expect("the first");
        let rejected = limiter.wait(KEY, Duration::ZERO).await;
        let rejected = rejected.expect_err("no time");
        assert_eq!(rejected.status(), 429, "{text}");
        let policies = rejected.decision().policies().filter(|own| own.rejected());
        let names: Vec<_> = policies.map(|own| own.policy()).collect();
        assert_eq!(names, rejecting, "{text}");
        assert_eq!(used(&limiter, "p", Key::new(KEY)).await, 1, "{text}");
    }
}

#[tokio::test]
async fn counting_a_final_rejection_reads_nothing_of_the_request() {
    let calls = Calls::default();
    let abuse = Policy::new("abuse", hourly(3)).strategy(Ban::for_duration(HOUR));
    let limiter = calls.limiter().policy(abuse).built();
    let parts = head("/");
    let charged = limiter.charge(KEY, 100).parts(&parts).await;
    charged.expect("a response");
    calls.take();
    let rejected = limiter.wait(KEY, Duration::ZERO).parts(&parts).await;
    assert_eq!(rejected.expect_err("no time").status(), 429);
    let [_, _, read @ ..] = calls.take();
    assert_eq!(read, [0, 1, 1, 1]);
    assert_eq!(used(&limiter, "abuse", Key::new(KEY)).await, 1);
}
