//! A whole server: axum over HTTP, with and without a layer.

use std::{
    cell::RefCell,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    routing::get,
    serve::ListenerExt,
};
use testkit::Server;
use tokio::{net::TcpListener, task::JoinHandle};
use tollgate::{
    Key, Limiter, OnStoreError, Policy, RateLimitHeaders, RateLimitLayer, limiter::LimiterBuilder,
};
use tower::util::MapRequestLayer;

use super::{keys, waiting};
use crate::{
    contenders::governor::header_layer,
    contenders::tollgate::{in_process, on_redis},
    keys::Rule,
    load::Rng,
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Comparison, Entrant, Expect, Measure, run_comparison},
    wrk,
};

/// Connections of the client, each with one request at a time.
const CONNECTIONS: usize = 64;

/// The most clients: a warm-up serves each of them ten times.
const MAX_CLIENTS: usize = 10_000;

/// The most clients that are rejected.
const MAX_REJECTED: usize = 1_000;

/// Indices of the contenders in the comparison.
const OURS: usize = 0;
const BARE: usize = 1;
const GOVERNOR: usize = 2;
const REDIS: usize = 3;
const REJECTED: usize = 4;
const REDIS_REJECTED: usize = 5;

pub(super) async fn over_http(mut plan: Plan) -> Vec<Outcome> {
    plan.keys = plan.keys.min(MAX_CLIENTS);
    let (clients, rejected) = (plan.keys, plan.keys.min(MAX_REJECTED));
    let (ample, scarce) = (Rule::ample(clients), Rule::scarce());
    let server = Server::start();
    let redis = || on_redis(&server.url());

    let ours = routes().layer(layer(limiter(in_process(), "ample", ample)));
    let governor = routes().layer(header_layer(ample));
    let on_redis = routes().layer(layer(limiter(redis(), "ample", ample)));
    let rejecting = limiter(in_process(), "scarce", scarce);
    let rejecting_on_redis = limiter(redis(), "scarce", scarce);
    for limiter in [&rejecting, &rejecting_on_redis] {
        use_up(limiter, rejected).await;
    }

    let admitted = |name, app| entrant(name, app, clients, Expect::Admitted);
    let rejected = |name, limiter| {
        let app = routes().layer(layer(limiter));
        entrant(name, app, rejected, Expect::Rejected)
    };
    let entrants = vec![
        admitted("tollgate", ours).await,
        admitted("bare axum", routes()).await,
        admitted("tower_governor, headers", governor).await,
        admitted("tollgate on Redis", on_redis).await,
        rejected("tollgate, rejecting", rejecting).await,
        rejected("tollgate on Redis, rejecting", rejecting_on_redis).await,
    ];
    let load = waiting(&plan, CONNECTIONS);
    let turns = run_comparison(&plan, load, Expect::Either, entrants).await;
    let title = format!("axum, {CONNECTIONS} connections, {}", keys(clients));
    let mut outcome = Outcome::of("served", title, &turns);
    for (two, note) in [
        ([OURS, BARE], "in process"),
        ([OURS, GOVERNOR], "in process"),
        (
            [GOVERNOR, BARE],
            "tower_governor, headers, in place of tollgate",
        ),
        ([REDIS, BARE], "on Redis"),
        ([REJECTED, BARE], "rejecting in process"),
        ([REDIS_REJECTED, BARE], "rejecting on Redis"),
    ] {
        outcome = row(outcome, &turns, two, note);
    }
    vec![outcome]
}

fn row(outcome: Outcome, turns: &Comparison, two: [usize; 2], note: &str) -> Outcome {
    let mut outcome = outcome.compare_two(turns, Measure::Rate, two, Target::None);
    if let Some(row) = outcome.rows.last_mut() {
        row.measure = format!("requests/s, {note}");
    }
    outcome
}

fn limiter(on: LimiterBuilder, name: &str, rule: Rule) -> Limiter {
    let on = on.policy(Policy::new(name, rule.quota()));
    // A response without a decision of the store is an error, and ends the run.
    let on = on.on_store_error(OnStoreError::Reject);
    on.build().expect("a limiter")
}

fn layer(limiter: Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter).headers(RateLimitHeaders::draft())
}

/// Makes the one request of each client that is admitted.
async fn use_up(limiter: &Limiter, clients: usize) {
    for client in 0..clients {
        let decision = limiter.check(Key::ip(client_address(client).into())).await;
        assert!(decision.is_admitted(), "{decision:?}");
    }
}

fn routes() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// A server of so many clients, of whose requests all are admitted, or none.
async fn entrant(name: &'static str, app: Router, clients: usize, expect: Expect) -> Entrant {
    let served = Arc::new(Served::start(app, clients).await);
    Entrant::loaded_by(name, move |load| {
        let served = served.clone();
        async move {
            let sample = wrk::load(served.address, load).await;
            let admitted = if expect == Expect::Rejected {
                0
            } else {
                sample.decisions
            };
            assert_eq!(
                sample.admitted, admitted,
                "{name}: {expect:?} was expected of {sample:?}"
            );
            sample
        }
    })
}

/// A server in this process, which ends when it is dropped.
struct Served {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Served {
    async fn start(app: Router, clients: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("an address");
        // All requests come from one address, so each is given that of a random client, bare or not.
        let app = app.layer(MapRequestLayer::new(move |mut request: Request| {
            let client = below(clients);
            let from = SocketAddr::from((client_address(client), 1_234));
            request.extensions_mut().insert(ConnectInfo(from));
            request
        }));
        let listener = listener.tap_io(|stream| {
            stream.set_nodelay(true).expect("a connection");
        });
        let task = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("a server");
        });
        Self { address, task }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A random client.
fn below(clients: usize) -> usize {
    thread_local! {
        static RNG: RefCell<Rng> = RefCell::new(Rng::new(0));
    }
    RNG.with_borrow_mut(|rng| rng.below(clients))
}

fn client_address(client: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0A00_0000 + client as u32)
}
