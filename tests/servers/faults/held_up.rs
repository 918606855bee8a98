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
use tokio::task::yield_now;
use tollgate::observe::{BreakerState, Event};

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

/// A wrong password, whose hash holds up the thread. Returns whether the store admitted the page, and whether the guess was charged, if
/// that is known.
async fn guess(limiter: &Limiter, address: Key) -> (bool, Option<bool>) {
    let page = limiter.check([("page", KEY)]).await;
    let is_counted = page.is_admitted() && page.source() == DecisionSource::Store;
    if limiter.admit([("p", address)]).cost(0).await.is_err() {
        return (is_counted, Some(false));
    }
    hash_password();
    let is_charged = match limiter.charge([("p", address)], 1).await {
        Ok(_) => Some(true),
        Err(CallError::Store(error)) => (!error.may_have_run()).then_some(false),
        Err(error) => panic!("{error}"),
    };
    (is_counted, is_charged)
}

/// Takes some 160 ms.
fn hash_password() {
    let params = Params::new(Params::DEFAULT_M_COST, 20, 1, None).expect("parameters");
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hashed = argon2.hash_password_into(b"a guess", b"a salt of bytes", &mut [0; 32]);
    hashed.expect("a hash");
}

/// 64 wrong passwords at once, each from another address.
#[test]
fn each_guess_is_charged_once_or_an_error_though_hashes_hold_up_the_runtime() {
    let server = Server::start();
    let openings = Arc::<Openings>::default();
    let limiter = logins(impatient(server.url()), &openings);
    let address = |n: usize| Key::new(format!("{n}"));
    let speed = Speed::measure(server.addr());
    let guesses = multi_thread(2).block_on(async {
        let flood = (0..64).map(|n| {
            let limiter = limiter.clone();
            tokio::spawn(async move { guess(&limiter, address(n)).await })
        });
        let guesses = join_all(flood.collect::<Vec<_>>()).await.into_iter();
        let guesses: Vec<_> = guesses.map(|guess| guess.expect("no panic")).collect();
        flushed(&limiter).await;
        guesses
    });
    let is_fast = speed.suffices();
    let other = logins(builder(server.url()).built(), &Arc::default());
    current_thread().block_on(async {
        for (n, (_, is_charged)) in guesses.iter().enumerate() {
            let status = other.peek([("p", address(n))]).await.expect("a status");
            let used = 5 - status.left("p");
            let is_right = is_charged.map_or(used <= 1, |charged| used == u64::from(charged));
            assert!(is_right, "guess {n}, {used} used: {guesses:?}");
        }
    });
    let counted = guesses.iter().filter(|(is_counted, _)| *is_counted);
    assert!(counted.count() <= 20, "{guesses:?}");
    assert!(openings.0.load(SeqCst) == 0 || !is_fast, "it has opened");
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

/// As by a network that has forgotten a connection.
#[tokio::test]
async fn a_silent_connection_opens_no_breaker_while_the_server_answers_others() {
    let (_server, proxy) = network();
    let limiter = rejecting(impatient(url(proxy.addr())), UNITS);
    resumed(&limiter).await;
    let speed = Speed::measure(proxy.addr());
    proxy.hold_open();
    let decision = limiter.check(KEY).await;
    assert_eq!(store_error(&decision).code(), "timeout");
    assert!(!is_open(&limiter) || !speed.suffices());
    // On another connection.
    resumed(&limiter).await;
}

/// One script that blocks the server for longer than the timeout, and delays many calls.
#[tokio::test]
async fn one_slow_script_counts_once_however_many_calls_it_delays() {
    let server = Server::start();
    let store = builder(server.url()).timeout(TIMEOUT);
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
