//! Five hundred requests over real connections, of all the kinds that end badly.

use tokio::{net::TcpListener, time::sleep};
use tollgate_tests::prelude::*;

use self::{
    client::{admitted, send},
    service::{Kind, Work, app},
};
use crate::inflight::support::*;

mod client;
mod service;

const REQUESTS: usize = 500;
const CLIENTS: usize = 25;

async fn five_hundred_requests(limiter: Limiter) {
    let work = Arc::new(Work::default());
    let app = app(&RateLimitLayer::new(limiter.clone()), &work);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    // Streams last until all permits are taken, so that it comes to that on any machine.
    work.hold_streams.store(true, Ordering::SeqCst);
    let filled = work.clone();
    tokio::spawn(async move {
        while filled.most.load(Ordering::SeqCst) < MAX_PERMITS as usize {
            sleep(ms(1)).await;
        }
        filled.hold_streams.store(false, Ordering::SeqCst);
    });
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
                            sleep(ms(10)).await;
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
    until_free(&limiter, MAX_PERMITS).await;

    let (most, ran) = (
        work.most.load(Ordering::SeqCst),
        work.ran.lock().expect("no panic"),
    );
    println!(
        "{most} at work at most; {} rejected, {} passed",
        rejected.len(),
        passed.len()
    );
    assert_eq!(most, MAX_PERMITS as usize, "at work at once");
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
    let kinds: HashSet<_> = passed.iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds.len(), 7, "of every kind some passed: {kinds:?}");
    assert_eq!(work.now.load(Ordering::SeqCst), 0);
    drop(ran);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_ten_holds_under_five_hundred_requests_in_process() {
    let store = Limiter::builder().store(MemoryStore::new());
    five_hundred_requests(build(store, [permit_policy(LONG_TTL)])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_ten_holds_under_five_hundred_requests_on_redis() {
    let server = Server::start();
    let store = Limiter::builder().store(store(server.url()));
    five_hundred_requests(build(store, [permit_policy(LONG_TTL)])).await;
    assert_eq!(server.keys(), [""; 0]);
}

/// The clock passes several TTLs while the streams last.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_outlast_the_ttl_of_their_permits_keep_them_to_the_end() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        let work = Arc::new(Work::default());
        work.hold_streams.store(true, Ordering::SeqCst);
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
        until("all streams are at work", async || {
            work.now.load(Ordering::SeqCst) == MAX_PERMITS as usize
        })
        .await;
        for _ in 0..3 {
            world.advance(PERMIT_TTL * 9 / 10);
            until_heartbeats(&world, MAX_PERMITS).await;
            let decision = check(&limiter).await;
            assert!(!admitted_by_store(&decision));
        }
        work.hold_streams.store(false, Ordering::SeqCst);
        for stream in streams {
            assert!(admitted(Kind::Stream, &stream.await.expect("a client")));
        }
        until_free(&limiter, MAX_PERMITS).await;
        server.abort();
    }
}
