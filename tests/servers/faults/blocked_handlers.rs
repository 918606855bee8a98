//! Handlers that block the threads of the runtime, by hashes of passwords say, and a process that is suspended: no request fails for
//! that, and the circuit breaker stays closed.

use std::{
    process::{Child, Command},
    sync::mpsc::{self, Receiver, Sender},
};

use crate::faults::support::*;
use tollgate::observe::{BreakerState, Event, UnitsEvent};

/// Counts how often circuit breakers open.
#[derive(Debug, Default)]
struct Openings(AtomicU64);

impl Observer for Openings {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::BreakerChanged { state, .. } = event {
            let opens = *state == BreakerState::Open;
            self.0.fetch_add(opens.into(), Ordering::SeqCst);
        }
    }
}

/// The limits of a login: so many pages in all, and so many wrong passwords from each address.
fn logins(store: RedisStore, openings: &Arc<Openings>) -> Limiter {
    let page = Policy::new("page", quota(20)).strategy(FixedWindow);
    Limiter::builder()
        .store(store)
        .policy(policy(5).by_hand().strategy(FixedWindow))
        .policy(page.by_hand())
        .on_store_error(OnStoreError::Reject)
        .observe(openings.clone())
        .built()
}

/// A wrong password, whose hash blocks the thread. Returns whether the page was admitted.
async fn guess(limiter: &Limiter, address: Key) -> bool {
    let page = limiter.check([("page", KEY)]).await;
    assert_eq!(page.source(), DecisionSource::Store, "{page:?}");
    let attempt = limiter.admit([("p", address)]).cost(0).await;
    drop(attempt.expect("it may be tried"));
    let start = Instant::now();
    while start.elapsed() < ms(150) {
        std::hint::spin_loop();
    }
    let charged = limiter.charge([("p", address)], 1).await;
    charged.expect("a response");
    page.is_admitted()
}

/// 64 wrong passwords at once, each from another address, block both threads for longer than twice the timeout.
#[test]
fn each_guess_of_a_login_flood_is_charged_once_and_no_request_fails() {
    let (server, openings) = (Server::start(), Arc::<Openings>::default());
    let hasty = builder(server.url()).timeout(secs(2));
    let limiter = logins(hasty.circuit_breaker_threshold(1).built(), &openings);
    let address = |n: usize| Key::new(format!("{n}"));
    let pages = multi_thread(2).block_on(async {
        let flood = (0..64).map(|n| {
            let limiter = limiter.clone();
            tokio::spawn(async move { guess(&limiter, address(n)).await })
        });
        join_all(flood.collect::<Vec<_>>()).await
    });
    let pages = pages.into_iter().map(|page| page.expect("no store error"));
    assert_eq!(pages.filter(|is_admitted| *is_admitted).count(), 20);
    assert_eq!(openings.0.load(Ordering::SeqCst), 0);
    // The counts are read without the short timeout.
    let limiter = logins(store(&server), &openings);
    current_thread().block_on(async {
        for n in 0..64 {
            let status = limiter.peek([("p", address(n))]).await.expect("a status");
            assert_eq!(status.used("p"), 1, "guess {n}");
        }
    });
}

/// Blocks in each event of units until the sender of the other channel is dropped.
#[derive(Debug)]
struct Blocked {
    began: Sender<()>,
    end: Mutex<Receiver<()>>,
}

impl Observer for Blocked {
    fn on_units(&self, _: &UnitsEvent<'_>) {
        self.began.send(()).ok();
        self.end.lock().expect("a lock").recv().ok();
    }
}

#[tokio::test]
async fn an_observer_that_blocks_while_a_charge_by_outcome_is_made_delays_no_request() {
    let server = Server::start();
    let ((began, has_begun), (release, end)) = (mpsc::channel(), mpsc::channel());
    let layer = RateLimitLayer::builder()
        .store(store(&server))
        .policy(
            policy(5)
                .key(extract::global())
                .charge_after(outcome::success),
        )
        .on_store_error(OnStoreError::Reject)
        .observe(Arc::new(Blocked {
            began,
            end: end.into(),
        }))
        .built();
    let hello = async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()));
    let Ok(response) = layer
        .layer(service_fn(hello))
        .oneshot(Request::new(()))
        .await;
    drop(response);
    let begun = tokio::task::spawn_blocking(move || has_begun.recv()).await;
    begun.expect("a task").expect("it is charged");
    let check = layer.limiter().check(KEY).into_future();
    let decision = tokio::time::timeout(TEST_TIMEOUT, check).await;
    drop(release);
    assert!(admitted_by_store(&decision.expect("it is not delayed")));
}

const URL: &str = "TOLLGATE_SUSPENDED_URL";
const TIMEOUT: Duration = secs(2);
const REQUESTS: usize = 8;

fn suspended(url: impl Into<String>) -> Limiter {
    // Nothing else is sent.
    let store = builder(url).timeout(TIMEOUT).overrides(false);
    rejecting(store.circuit_breaker_threshold(1).built(), 1_000)
}

/// Runs as a process of its own, below: one request on each of several stores. It does nothing in a plain run of the tests.
#[tokio::test]
async fn suspended_process() {
    let Ok(url) = env::var(URL) else { return };
    let limiters: Vec<_> = (0..REQUESTS).map(|_| suspended(&url)).collect();
    let checks = limiters.iter().map(|limiter| limiter.check(KEY));
    let decisions = join_all(checks.map(IntoFuture::into_future)).await;
    for decision in decisions {
        assert!(admitted_by_store(&decision), "{decision:?}");
    }
    for limiter in &limiters {
        assert!(admitted_by_store(&limiter.check(KEY).await));
    }
}

/// A process that is killed if the test fails.
struct Suspended(Child);

impl Drop for Suspended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The state of a process, as `ps` names it.
fn state(process: &Child) -> String {
    let id = process.id().to_string();
    let ps = Command::new("ps").args(["-o", "stat=", "-p", &id]).output();
    String::from_utf8_lossy(&ps.expect("ps runs").stdout).into_owned()
}

#[tokio::test]
async fn replies_that_come_while_the_process_is_suspended_for_twice_the_timeout_count() {
    let server = Server::start();
    // So that the server has the script.
    assert!(admitted_by_store(&suspended(server.url()).check(KEY).await));
    order(&server, &PAUSE_WRITES);
    let process = tollgate_tests::child::test(module_path!(), "suspended_process")
        .env(URL, server.url())
        .spawn();
    let mut process = Suspended(process.expect("a process"));
    let are_sent = async || held_by_pause(&server, "evalsha") == REQUESTS;
    until("all requests are sent", are_sent).await;
    testkit::signal(process.0.id(), "STOP");
    let is_suspended = async || state(&process.0).starts_with('T');
    until("the process is suspended", is_suspended).await;
    order(&server, &UNPAUSE);
    let have_run = async || held_by_pause(&server, "evalsha") == 0;
    until("all requests have run", have_run).await;
    tokio::time::sleep(2 * TIMEOUT).await;
    testkit::signal(process.0.id(), "CONT");
    let status = process.0.wait().expect("its end");
    assert!(status.success(), "{status}");
}
