//! Five hundred requests over real connections, of all the kinds that end badly.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::Server;
use tokio::{net::TcpListener, time::sleep};
use tollgate::{Limiter, MemoryStore, RateLimitLayer};

use self::{
    client::{admitted, send},
    service::{Kind, Work, app},
};
use crate::inflight::support::{
    MAX_PERMITS, TEST_TIMEOUT, admitted_by_store, build, check, free, permit_policy, store,
};

mod client;
mod service;

/// Long enough that a busy machine keeps its heartbeats: a permit is lost after two thirds of it without one.
const PERMIT_TTL: Duration = Duration::from_millis(1_500);

const REQUESTS: usize = 500;
const CLIENTS: usize = 25;

/// For how long, in milliseconds, this process was kept from its work at most.
static STALL: AtomicUsize = AtomicUsize::new(0);

/// Whether it lost permits as documented for a process that is stopped for longer than their TTL: on a machine under
/// such load the count proves nothing.
fn stood_still() -> bool {
    let stall = Duration::from_millis(STALL.load(Ordering::SeqCst) as u64);
    println!("kept from its work for {stall:?} at most");
    stall > PERMIT_TTL / 2
}

async fn longest_stall() {
    loop {
        let began = Instant::now();
        sleep(Duration::from_millis(10)).await;
        STALL.fetch_max(began.elapsed().as_millis() as usize, Ordering::SeqCst);
    }
}

async fn five_hundred_requests(limiter: Limiter) {
    let work = Arc::new(Work::default());
    let app = app(&RateLimitLayer::new(limiter.clone()), &work);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let stall = tokio::spawn(longest_stall());
    let tickets = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (work, tickets) = (work.clone(), tickets.clone());
            tokio::spawn(async move {
                let mut rejected = Vec::new();
                let mut passed = Vec::new();
                loop {
                    let request = tickets.fetch_add(1, Ordering::SeqCst);
                    if request >= REQUESTS {
                        return (rejected, passed);
                    }
                    let kind = Kind::of(request);
                    let sent = send(address, kind, request, &work);
                    let saw = tokio::time::timeout(TEST_TIMEOUT, sent).await;
                    match admitted(
                        kind,
                        &saw.unwrap_or_else(|_| panic!("{kind:?} never ended")),
                    ) {
                        true => passed.push((request, kind)),
                        // It retries no sooner than another request may be over.
                        false => {
                            rejected.push(request);
                            sleep(Duration::from_millis(10)).await;
                        }
                    }
                }
            })
        })
        .collect();
    let (mut rejected, mut passed) = (Vec::new(), Vec::new());
    for client in clients {
        let (no, yes) = client.await.expect("a client that ends well");
        rejected.extend(no);
        passed.extend(yes);
    }
    let ended = Instant::now();
    while free(&limiter).await < MAX_PERMITS {
        assert!(
            ended.elapsed() < PERMIT_TTL,
            "{} permits are not back",
            MAX_PERMITS - free(&limiter).await
        );
        sleep(Duration::from_millis(5)).await;
    }

    stall.abort();
    let (most, ran) = (
        work.most.load(Ordering::SeqCst),
        work.ran.lock().expect("no panic"),
    );
    println!(
        "{most} at work at most; {} rejected, {} passed",
        rejected.len(),
        passed.len()
    );
    assert!(
        most <= MAX_PERMITS as usize || stood_still(),
        "{most} at work at once"
    );
    assert!(
        most >= MAX_PERMITS as usize,
        "it never came to that, and the test says nothing"
    );
    assert!(
        rejected.iter().all(|request| !ran.contains(request)),
        "rejected, and run"
    );
    assert_eq!(rejected.len() + passed.len(), REQUESTS);
    for (request, kind) in &passed {
        // The time may have been up before the store's result came.
        assert!(
            ran.contains(request) || *kind == Kind::Timeout,
            "{kind:?} passed and did not run"
        );
    }
    assert!(
        work.streams.load(Ordering::SeqCst) > 0,
        "a stream that outlasts its permit"
    );
    let kinds = passed.iter().filter(|(request, _)| ran.contains(request));
    let kinds: HashSet<_> = kinds.map(|(_, kind)| kind).collect();
    assert_eq!(kinds.len(), 7, "of every kind some passed: {kinds:?}");
    assert_eq!(work.now.load(Ordering::SeqCst), 0);
    drop(ran);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_ten_holds_under_five_hundred_requests_in_process() {
    let store = Limiter::builder().store(MemoryStore::new());
    five_hundred_requests(build(store, [permit_policy(PERMIT_TTL)])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_ten_holds_under_five_hundred_requests_on_redis() {
    let server = Server::start();
    let store = Limiter::builder().store(store(server.url()));
    five_hundred_requests(build(store, [permit_policy(PERMIT_TTL)])).await;
    assert_eq!(server.keys(), [""; 0]);
}

/// Longer than its TTL in a stream, while others wait for its permit.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_outlasts_its_permits_ttl_keeps_the_permit_to_the_end() {
    let server = Server::start();
    for builder in [
        Limiter::builder().store(MemoryStore::new()),
        Limiter::builder().store(store(server.url())),
    ] {
        let limiter = build(builder, [permit_policy(PERMIT_TTL)]);
        let work = Arc::new(Work::default());
        let app = app(&RateLimitLayer::new(limiter.clone()), &work);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let streams: Vec<_> = (0..MAX_PERMITS as usize)
            .map(|request| {
                let work = work.clone();
                tokio::spawn(async move { send(address, Kind::Stream, request, &work).await })
            })
            .collect();
        while work.now.load(Ordering::SeqCst) < MAX_PERMITS as usize {
            sleep(Duration::from_millis(1)).await;
        }
        let stall = tokio::spawn(longest_stall());
        let mut sent = 0;
        while work.streams.load(Ordering::SeqCst) == 0 {
            let decision = check(&limiter).await;
            let ended = work.streams.load(Ordering::SeqCst) > 0;
            assert!(
                !admitted_by_store(&decision) || ended || stood_still(),
                "a permit of a stream that goes on"
            );
            sent += 1;
            sleep(Duration::from_millis(5)).await;
        }
        stall.abort();
        assert!(sent > 10);
        for stream in streams {
            assert!(admitted(Kind::Stream, &stream.await.expect("a client")));
        }
        crate::inflight::support::until_free(&limiter, MAX_PERMITS).await;
        server.abort();
    }
}
