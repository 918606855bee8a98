//! Processes that share a limit, and processes that die.

use std::{
    io::{BufRead, BufReader, Read},
    process::Child,
};

use testkit::Connection;
use tollgate_tests::prelude::*;

use crate::inflight::support::*;

const URL: &str = "TOLLGATE_INFLIGHT_URL";
const TURNS: usize = 50;

fn child(test: &str, server: &Server) -> Child {
    tollgate_tests::child::test(module_path!(), test)
        .env(URL, server.url())
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn limiter(url: String) -> Limiter {
    let builder = Limiter::builder().store(store(url));
    build(builder, [permit_policy(PERMIT_TTL)])
}

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process_that_holds_six_permits() {
    let Ok(url) = env::var(URL) else { return };
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let limiter = limiter(url);
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(admit(&limiter).await);
        }
        let admitted = held.iter().filter(|decision| admitted_by_store(decision));
        println!("holds={}", admitted.count());
        // Until its parent kills it, or has gone.
        drop(std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new())).join());
        drop(held);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_a_killed_process_are_free_after_one_ttl_and_not_before() {
    let world = World::redis();
    let server = world.server();
    let mut process = child("child_process_that_holds_six_permits", server);
    let mut said = BufReader::new(process.stdout.take().expect("its output"));
    let mut line = String::new();
    while !line.contains("holds=") {
        line.clear();
        let read = said.read_line(&mut line).expect("its output");
        assert!(read > 0, "it ended early");
    }
    assert!(line.contains("holds=6"), "{line}");

    let limiter = limiter(server.url());
    let own = fill(&limiter).await;
    assert_eq!(own.len(), 4, "two processes share the limit");
    let renewed = async || {
        let ends = world.now() + PERMIT_TTL.as_micros() as u64;
        until("both processes' heartbeats come", async || {
            holders(server).iter().all(|(_, at)| *at == ends)
        })
        .await;
    };
    // While the process runs, its permits are renewed.
    for _ in 0..2 {
        world.advance(PERMIT_TTL * 9 / 10);
        renewed().await;
        assert_eq!((free(&limiter).await, stored_permits(server)), (0, 10));
    }

    process.kill().expect("SIGKILL");
    process.wait().expect("its end");
    // A renewal that it had sent has been made by then.
    assert_eq!(free(&limiter).await, 0);
    let last = world.now() + PERMIT_TTL.as_micros() as u64;
    let half = PERMIT_TTL / 2;
    world.advance(half);
    until("our heartbeats come", async || {
        holders(server).iter().filter(|(_, at)| *at > last).count() == own.len()
    })
    .await;
    world.advance(PERMIT_TTL - half - Duration::from_micros(1));
    let early = admit(&limiter).await;
    assert!(!admitted_by_store(&early), "not a microsecond before");
    world.advance(Duration::from_micros(1));
    let more = fill(&limiter).await;
    assert_eq!(more.len(), 6, "what it held, and no more");
    assert_eq!(stored_permits(server), MAX_PERMITS);
    drop((own, more));
    until("all are back", async || free(&limiter).await == MAX_PERMITS).await;
    assert_eq!(server.keys(), [""; 0]);
}

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process_that_takes_turns() {
    let Ok(url) = env::var(URL) else { return };
    let port = url
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let most = multi_thread(2).block_on(async {
        // The machine may stand still for a while; that is another test's matter.
        let policy = permit_policy(LONG_TTL);
        let limiter = build(Limiter::builder().store(store(url)), [policy]);
        hold_half(&limiter, address).await;
        let tasks: Vec<_> = (0..16)
            .map(|_| tokio::spawn(take_turns(limiter.clone(), address)))
            .collect();
        let mut most = 0;
        for task in tasks {
            most = most.max(task.await.expect("a task that ends well"));
        }
        // Releases are on their way, and would end with this process.
        until("all are back", async || free(&limiter).await == MAX_PERMITS).await;
        most
    });
    println!("most={most} in flight");
}

/// Holds half of all permits until the other process holds the other half: so both are known to use the limit at once.
async fn hold_half(limiter: &Limiter, address: SocketAddr) {
    let mut counter = Connection::open(address, TEST_TIMEOUT).expect("a connection");
    let mut held = Vec::new();
    for _ in 0..MAX_PERMITS / 2 {
        let permit = admit(limiter).await;
        assert!(admitted_by_store(&permit), "{permit:?}");
        held.push(permit);
        counter.call(&["INCR", "met"]).expect("a response").int();
    }
    until("the other process holds as many", async || {
        let met = counter.call(&["GET", "met"]).expect("a response").text();
        met == MAX_PERMITS.to_string()
    })
    .await;
}

/// Is admitted so often; returns the most of both processes that were in flight at once.
async fn take_turns(limiter: Limiter, address: SocketAddr) -> i64 {
    let mut counter = Connection::open(address, TEST_TIMEOUT).expect("a connection");
    let (mut most, mut turns) = (0, 0);
    while turns < TURNS {
        let decision = admit(&limiter).await;
        if admitted_by_store(&decision) {
            // Counted by other means than the limiter's own.
            let inside = counter.call(&["INCR", "inside"]).expect("a response").int();
            (most, turns) = (inside.max(most), turns + 1);
            tokio::time::sleep(ms(1)).await;
            counter.call(&["DECR", "inside"]).expect("a response").ok();
        }
        tokio::task::yield_now().await;
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_never_have_more_in_flight_than_the_limit_together() {
    let server = Server::start();
    let processes = [(); 2].map(|()| child("child_process_that_takes_turns", &server));
    for process in processes {
        let output = process.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let rest = text.split("most=").nth(1).expect("its count");
        let most = rest.split(' ').next().expect("a number").parse::<u64>();
        assert!(most.expect("a number") <= MAX_PERMITS, "{text}");
    }
    assert_eq!(server.keys(), ["inside", "met"]);
    assert_eq!(server.command(&["GET", "inside"]).text(), "0");
}
