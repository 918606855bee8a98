//! A process whose threads are held up, by hashes of passwords say, takes its server for silent only if it is. Nothing that was
//! checked goes uncharged.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::Ordering::SeqCst,
    thread::JoinHandle,
};

use crate::faults::support::*;
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::{
    sync::Semaphore,
    task::{spawn_blocking, yield_now},
};
use tollgate::{
    observe::{BreakerState, Event, Observer},
    store::HealthWarning,
};

const UNITS: u64 = 1_000_000;

/// The timeout of stores whose process is held up. The server itself takes much less.
const TIMEOUT: Duration = secs(1);

fn impatient(url: impl Into<String>) -> RedisStore {
    builder(url).timeout(TIMEOUT).built()
}

/// A limiter whose circuit breaker opens with the first failure.
fn quick_to_open(server: SocketAddr) -> Limiter {
    let store = builder(url(server)).timeout(TIMEOUT);
    rejecting(store.circuit_breaker_threshold(1).built(), UNITS)
}

/// Measures how fast the machine is meanwhile: whether a server that is well answers, and a thread runs, in much less time than the
/// timeout. Without that, a slow machine is an outage.
struct Speed {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Speed {
    fn measure(server: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = is_over.clone();
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !ended.load(SeqCst) {
                let start = Instant::now();
                let mut server = TcpStream::connect(server).expect("a connection");
                // As a proxy knows it, which passes it on also while it holds other requests.
                let ping = b"*1\r\n$4\r\nPING\r\n";
                server.write_all(ping).expect("it is sent");
                server.read_exact(&mut [0; 7]).expect("a reply");
                thread::sleep(ms(2));
                longest = longest.max(start.elapsed());
            }
            longest
        });
        Self { is_over, thread }
    }

    fn suffices(self) -> bool {
        self.is_over.store(true, SeqCst);
        let longest = self.thread.join().expect("no panic");
        println!("the server answered within {longest:.0?}");
        longest < TIMEOUT / 8
    }
}

/// Counts how often circuit breakers open.
#[derive(Debug, Default)]
struct Openings(AtomicU64);

impl Observer for Openings {
    fn on_event(&self, event: &Event<'_>) {
        let Event::BreakerChanged { state, .. } = event else {
            return;
        };
        self.0
            .fetch_add((*state == BreakerState::Open).into(), SeqCst);
    }
}

/// The limit of a login, and one that admits while the store fails.
fn logins(store: RedisStore, openings: &Arc<Openings>) -> Limiter {
    let page = Policy::new("page", quota(20)).strategy(FixedWindow);
    Limiter::builder()
        .store(store)
        .policy(policy(5).by_hand().strategy(FixedWindow))
        .policy(page.by_hand().on_store_error(OnStoreError::Admit))
        .on_store_error(OnStoreError::Reject)
        .observe(openings.clone())
        .built()
}

/// A wrong password. Returns whether the store admitted the page, and whether the password was checked.
async fn guess(limiter: &Limiter, address: Key, hash: impl Future<Output = ()>) -> [bool; 2] {
    let page = limiter.check([("page", KEY)]).await;
    let is_counted = page.is_admitted() && page.source() == DecisionSource::Store;
    if limiter.admit([("p", address)]).cost(0).await.is_err() {
        return [is_counted, false];
    }
    hash.await;
    let charged = limiter.charge([("p", address)], 1).await;
    assert!(matches!(charged, Ok(_) | Err(CallError::Store(_))));
    [is_counted, true]
}

/// Hashes a password with so many passes over the memory, each of some 8 ms.
fn hash_password(passes: u32) {
    let params = Params::new(Params::DEFAULT_M_COST, passes, 1, None).expect("parameters");
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hashed = argon2.hash_password_into(b"a guess", b"a salt of bytes", &mut [0; 32]);
    hashed.expect("a hash");
}

/// 64 wrong passwords at once, each from another address.
fn flood(holds_up: bool) {
    let server = Server::start();
    let openings = Arc::<Openings>::default();
    let limiter = logins(impatient(server.url()), &openings);
    let (runtime, hashing) = (multi_thread(2), Arc::new(Semaphore::new(1)));
    let address = |n: usize| Key::new(format!("{n}"));
    let speed = Speed::measure(server.addr());
    let flood = (0..64).map(|n| {
        let (limiter, hashing) = (limiter.clone(), hashing.clone());
        runtime.spawn(async move {
            let hash = async {
                let _permit = match holds_up {
                    true => return hash_password(20),
                    false => hashing.acquire().await.expect("it is open"),
                };
                let hash = spawn_blocking(|| hash_password(2));
                hash.await.expect("no panic");
            };
            guess(&limiter, address(n), hash).await
        })
    });
    let flood: Vec<_> = flood.collect();
    let guesses = runtime.block_on(async {
        let guesses = join_all(flood).await.into_iter();
        let guesses: Vec<_> = guesses.map(|guess| guess.expect("no panic")).collect();
        flushed(&limiter).await;
        guesses
    });
    let is_fast = speed.suffices();
    let other = logins(builder(server.url()).built(), &Arc::default());
    current_thread().block_on(async {
        for (n, [_, is_checked]) in guesses.iter().enumerate() {
            let status = other.peek([("p", address(n))]).await.expect("a status");
            let used = 5 - status.left("p");
            assert_eq!(used, u64::from(*is_checked), "guess {n}: {guesses:?}");
        }
    });
    let counted = guesses.iter().filter(|[is_counted, _]| *is_counted);
    assert!(counted.count() <= 20, "{guesses:?}");
    assert!(openings.0.load(SeqCst) == 0 || !is_fast, "it has opened");
}

#[test]
fn each_guess_that_was_checked_is_charged_once_though_hashes_hold_up_the_runtime_or_run_elsewhere()
{
    flood(true);
    flood(false);
}

/// Sends a request, has the only thread stand still, and returns the decision.
async fn held_up(limiter: &Limiter, by: Duration) -> Decision {
    let check = tokio::spawn(limiter.check(KEY).into_future());
    // It is sent, and its reply is not read.
    yield_now().await;
    yield_now().await;
    thread::sleep(by);
    check.await.expect("no panic")
}

#[test]
fn a_request_of_a_process_that_was_held_up_is_decided_by_the_store() {
    let server = Server::start();
    for millis in [50, 900, 1_500, 5_000] {
        let limiter = quick_to_open(server.addr());
        let speed = Speed::measure(server.addr());
        let decisions = current_thread().block_on(async {
            resumed(&limiter).await;
            let first = held_up(&limiter, ms(millis)).await;
            [first, limiter.check(KEY).await]
        });
        if speed.suffices() {
            for decision in decisions {
                assert_eq!(decision.source(), DecisionSource::Store, "{millis} ms");
            }
        }
    }
}

/// One request is sent, and another waits for its reply, while the only thread stands still for longer than the timeout, twice.
#[test]
fn requests_that_wait_through_several_stops_of_the_process_are_decided_by_the_store() {
    let (_server, proxy) = network();
    let limiter = quick_to_open(proxy.addr());
    let speed = Speed::measure(proxy.addr());
    let mut decisions = Vec::new();
    current_thread().block_on(async {
        resumed(&limiter).await;
        for stops in 1..=2 {
            proxy.hold_open();
            let mut checks = Vec::new();
            for key in [KEY, Key::new("other")] {
                checks.push(tokio::spawn(limiter.check(key).into_future()));
                yield_now().await;
                yield_now().await;
            }
            for _ in 0..stops {
                thread::sleep(TIMEOUT * 5 / 2);
                tokio::time::sleep(TIMEOUT / 4).await;
            }
            proxy.pass();
            for check in checks {
                decisions.push(check.await.expect("no panic").source());
            }
        }
    });
    if speed.suffices() {
        assert_eq!(decisions, [DecisionSource::Store; 4]);
    }
}

const URL: &str = "TOLLGATE_STOPPED_URL";

/// Runs as a process of its own, below, until its circuit breaker opens. It does nothing in a plain run of the tests.
#[tokio::test]
async fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    opened(&rejecting(impatient(url), UNITS)).await;
}

/// Each probe is late, and so is its repetition.
#[test]
fn a_silent_server_is_found_out_by_a_process_that_is_stopped_for_most_of_each_second() {
    let server = Server::start();
    let child = tollgate_tests::child::test(module_path!(), "child_process")
        .env(URL, server.url())
        .stdout(Stdio::null())
        .spawn();
    let (mut child, start) = (child.expect("a process"), Instant::now());
    while server.calls("evalsha") == 0 {
        assert!(start.elapsed() < TEST_TIMEOUT, "it does not connect");
        thread::sleep(ms(2));
    }
    server.pause();
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("a process") {
            break ended;
        }
        if start.elapsed() >= TEST_TIMEOUT {
            let _ = child.kill();
            panic!("the breaker does not open");
        }
        testkit::signal(child.id(), "STOP");
        thread::sleep(ms(900));
        testkit::signal(child.id(), "CONT");
        thread::sleep(ms(100));
    };
    assert!(ended.success(), "{ended}");
}

/// As by a network that has forgotten a connection, or a script that a cluster's other nodes do not wait for.
#[tokio::test]
async fn a_silent_connection_opens_no_breaker_while_the_server_answers_others() {
    let (_server, proxy) = network();
    let limiter = quick_to_open(proxy.addr());
    resumed(&limiter).await;
    let speed = Speed::measure(proxy.addr());
    proxy.hold_open();
    let decision = limiter.check(KEY).await;
    assert_eq!(store_error(&decision).code(), "timeout");
    let is_fast = speed.suffices();
    assert!(!is_open(&limiter) || !is_fast);
    // On another connection.
    resumed(&limiter).await;
}

#[tokio::test]
async fn a_reply_that_comes_after_the_timeout_counts_while_the_server_answers_others() {
    let (_server, proxy) = network();
    let limiter = quick_to_open(proxy.addr());
    resumed(&limiter).await;
    let speed = Speed::measure(proxy.addr());
    proxy.hold_open();
    let check = tokio::spawn(limiter.check(KEY).into_future());
    tokio::time::sleep(TIMEOUT + TIMEOUT / 4).await;
    proxy.pass();
    let decision = check.await.expect("no panic");
    if speed.suffices() {
        assert_eq!(decision.source(), DecisionSource::Store);
        let health = limiter.health_check().await;
        let warnings = health.warnings();
        let is_warned = matches!(warnings, [HealthWarning::HeldUp { .. }]);
        assert!(is_warned && health.is_healthy(), "{warnings:?}");
        assert!(limiter.health_check().await.warnings().is_empty(), "once");
    }
}

/// One script that blocks the server for longer than the timeout, and delays many calls.
#[tokio::test]
async fn one_slow_script_counts_once_however_many_calls_it_delays() {
    let server = Server::start();
    let store = builder(server.url()).timeout(TIMEOUT).connections(4);
    let store = store.circuit_breaker_threshold(3).built();
    let limiter = rejecting(store, UNITS);
    let check = |n: u32| tokio::spawn(limiter.check(Key::new(format!("{n}"))).into_future());
    until("all workers have connections", async || {
        let checks = join_all((0..32).map(check)).await.into_iter();
        let mut decisions = checks.map(|check| check.expect("no panic"));
        decisions.all(|decision| decision.source() == DecisionSource::Store)
    })
    .await;
    let mut script = server.connect().expect("a connection");
    let slow = "
        local function now()
            local time = redis.call('TIME')
            return time[1] * 1000 + time[2] / 1000
        end
        local begun = now()
        while now() < begun + 1500 do
        end
    ";
    let start = Instant::now();
    let script = thread::spawn(move || script.call(&["EVAL", slow, "0"]).map(drop));
    let busy = async || {
        let mut ping = TcpStream::connect(server.addr()).expect("a connection");
        ping.write_all(b"PING\r\n").expect("it is sent");
        let pause = Some(ms(50));
        ping.set_read_timeout(pause).expect("a socket");
        ping.read_exact(&mut [0; 7]).is_err()
    };
    until("the script runs", busy).await;
    let delayed = join_all((0..32).map(check)).await;
    assert!(delayed.iter().all(Result::is_ok), "no panic");
    // On a machine on which it takes longer the server is silent for longer.
    assert!(!is_open(&limiter) || start.elapsed() > 5 * TIMEOUT / 2);
    script.join().expect("no panic").expect("its end");
    resumed(&limiter).await;
}

/// The server runs it after its caller has left.
#[tokio::test]
async fn a_charge_by_hand_that_was_sent_waits_for_its_reply() {
    let (_server, proxy) = network();
    let limiter = rejecting(impatient(url(proxy.addr())), UNITS);
    resumed(&limiter).await;
    proxy.hold_open();
    let error = limiter.charge(KEY, 7).await.expect_err("no reply");
    assert!(matches!(error, CallError::Store(StoreError::Timeout)));
    proxy.pass();
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&limiter, KEY).await, 7);
    assert_eq!(limiter.health_check().await.unconfirmed(), 0);
}

/// The runtime that was sending it ends.
#[test]
fn a_charge_by_hand_that_is_lost_with_its_runtime_is_made_by_another() {
    let (server, proxy) = network();
    let limiter = rejecting(through(&proxy), UNITS);
    let other = rejecting(store(&server), UNITS);
    proxy.hold();
    let ending = current_thread();
    ending.block_on(async {
        let charge = tokio::spawn(limiter.charge(KEY, 7).into_future());
        while proxy.connections() == 0 {
            yield_now().await;
        }
        // Nobody waits for it.
        charge.abort();
        assert!(charge.await.is_err());
    });
    drop(ending);
    proxy.pass();
    current_thread().block_on(async {
        resumed(&limiter).await;
        flushed(&limiter).await;
        assert_eq!(used_on_the_store(&other, KEY).await, 7);
    });
}

/// They were neither made nor lost, and their callers know. Each of the store's connections is broken, and the requests that open the
/// breaker meet one of them.
#[tokio::test]
async fn charges_by_hand_that_were_not_sent_are_made_once_the_store_is_back() {
    let (server, proxy) = network();
    let limiter = rejecting(builder(url(proxy.addr())).connections(4).built(), UNITS);
    let other = rejecting(store(&server), UNITS);
    let keys: Vec<_> = (0..32).map(|n| Key::new(format!("{n}"))).collect();
    for key in &keys {
        limiter.peek(*key).await.expect("a status");
    }
    proxy.cut();
    opened(&limiter).await;
    for key in &keys {
        let error = limiter.charge(*key, 7).await.expect_err("an outage");
        let CallError::Store(error @ StoreError::Deferred { cause, .. }) = &error else {
            panic!("{error}");
        };
        assert_eq!(cause.code(), "circuit_open");
        let text =
            "the charge or refund is kept, and made once the store responds: do not repeat it";
        assert!(error.to_string().starts_with(text), "{error}");
    }
    proxy.pass();
    flushed(&limiter).await;
    for key in keys {
        assert_eq!(used_on_the_store(&other, key).await, 7);
    }
}

#[tokio::test]
async fn a_charge_of_an_admission_that_is_deferred_counts_for_its_settlement() {
    let (_server, proxy) = network();
    let store = through(&proxy);
    let policy = policy(1_000).strategy(FixedWindow).cost(10);
    let limiter = under(policy, store, OnStoreError::Reject);
    let admission = limiter.admit(KEY).await.expect("room");
    let charged = admission.policy("p").expect("a policy");
    proxy.cut();
    opened(&limiter).await;
    let error = charged.charge(7).await.expect_err("an outage");
    assert_eq!(error.code(), "deferred");
    proxy.pass();
    resumed(&limiter).await;
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&limiter, KEY).await, 17);
    charged.settle(20).await.expect("it is known");
    assert_eq!(used_on_the_store(&limiter, KEY).await, 20);
}
