//! Ten thousand reloads while requests are served: nothing is left behind.

use std::{
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, Response};
use testkit::{Server, folder};
use tokio::{
    runtime::{Builder, Handle},
    time::sleep,
};
use tollgate::{
    PeerAddr, RateLimitLayer,
    config::{Document, Registry, Watch},
};
use tower::{Layer, ServiceExt, service_fn};

use crate::config_reload::{
    until::until,
    writes::{NAME, renamed},
};

/// Set in the process of its own.
const CHILD: &str = "TOLLGATE_MANY_RELOADS";

/// Before these, memory grows to what is kept for later use.
const WARM_UP: u64 = 1_000;

const RELOADS: u64 = 10_000;

/// What the allocator's arenas may grow by, with no part left behind by each reload: that would be 10,000 times as much.
const MAX_GROWTH_KB: u64 = 2_048;

/// All that a document can replace: another quota, a policy that comes and goes, a list, a fallback.
fn documents(server: &Server) -> [String; 2] {
    let url = server.url();
    // The machine may be busy.
    let head = format!("[store]\nurl = \"{url}\"\ntimeout = \"20s\"\n");
    let first = r#"
        deny = [{ addresses = ["192.0.2.0/24"] }]
        [policies.api]
        quota = "1000000/hour"
        key = "client_ip"
        [policies.day]
        quota = "1000000/day"
        key = "client_ip"
        strategy = "fixed_window"
    "#;
    let second = r#"
        on_store_error = { local_fallback = { processes = 4 } }
        [policies.api]
        quota = "2000000/hour"
        key = "client_ip"
        [policies.in_flight]
        quota = "100 concurrent"
        strategy = "concurrency ttl 1s"
        key = "client_ip"
    "#;
    [first, second].map(|text| {
        let (settings, policies) = text.split_once("[policies").expect("policies");
        format!("{settings}{head}[policies{policies}")
    })
}

/// A process of its own, whose memory is its alone. It does nothing in a plain run of the tests.
#[test]
fn child_process() {
    if env::var(CHILD).is_err() {
        return;
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(reload_often());
}

#[test]
fn ten_thousand_reloads_leave_no_connection_task_or_byte() {
    let output = tollgate_tests::child::test(module_path!(), "child_process")
        .env(CHILD, "1")
        .output()
        .expect("its output");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    print!("{text}");
    assert!(text.contains("10000 reloads"), "{text}");
}

async fn reload_often() {
    let server = Server::start();
    let folder = folder();
    let file = folder.path().join(NAME);
    let documents = documents(&server);
    fs::write(&file, &documents[0]).expect("a file");
    let registry = Registry::new();
    let layer = Document::load(&file).expect("a document").layer(&registry);
    let layer = layer.expect("a layer");
    let watch = Watch::new(&file)
        .registry(registry)
        .every(Duration::from_millis(50));
    let watcher = watch.start(&layer).expect("a watch");

    let (served, ends) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let requests: Vec<_> = (0..2)
        .map(|_| tokio::spawn(serve(layer.clone(), Arc::clone(&served), Arc::clone(&ends))))
        .collect();
    let reload = async |times: u64| {
        for n in 0..times {
            renamed(folder.path(), &documents[(n % 2) as usize]);
            watcher.reload().await.expect("a reload");
        }
    };
    reload(WARM_UP).await;
    // Permits of policies that are gone are renewed no more.
    sleep(Duration::from_secs(2)).await;
    let before = State::now(&server);
    let (start, served_before) = (Instant::now(), served.load(Ordering::Relaxed));
    reload(RELOADS).await;
    let took = start.elapsed();
    let requests_served = served.load(Ordering::Relaxed) - served_before;
    let mut after = State::now(&server);
    // One may be about to end.
    until("all tasks but those before have ended", async || {
        after = State::now(&server);
        after.tasks <= before.tasks
    })
    .await;
    println!(
        "{RELOADS} reloads in {took:.1?}, {requests_served} requests meanwhile: {before:?}, then {after:?}"
    );
    assert!(requests_served > 1_000, "{requests_served}");
    assert_eq!(after.connections, before.connections);
    assert!(
        after.resident_kb <= before.resident_kb + MAX_GROWTH_KB,
        "{before:?}, then {after:?}"
    );
    ends.store(true, Ordering::Relaxed);
    for request in requests {
        request.await.expect("no request fails");
    }
    assert_eq!(watcher.status().failures(), 0);
}

/// Sends one request after the other, each of which must be admitted.
async fn serve(layer: RateLimitLayer, served: Arc<AtomicU64>, ends: Arc<AtomicBool>) {
    let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(())));
    let service = layer.layer(inner);
    while !ends.load(Ordering::Relaxed) {
        let mut request = Request::new(());
        request
            .extensions_mut()
            .insert(PeerAddr(([127, 0, 0, 1], 4321).into()));
        let Ok(response) = service.clone().oneshot(request).await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().contains_key("ratelimit"), "{response:?}");
        served.fetch_add(1, Ordering::Relaxed);
        // The reloads need the processor as well.
        sleep(Duration::from_millis(1)).await;
    }
}

/// What may be left behind.
#[derive(Debug)]
struct State {
    connections: usize,
    tasks: usize,
    resident_kb: u64,
}

impl State {
    fn now(server: &Server) -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("the process's status");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.and_then(|number| number.parse().ok()).expect(name)
        };
        Self {
            connections: server.command(&["CLIENT", "LIST"]).text().lines().count(),
            tasks: Handle::current().metrics().num_alive_tasks(),
            resident_kb: number("VmRSS:"),
        }
    }
}
