//! Hundreds of reloads while requests are served: nothing is left behind.

use std::env;

use testkit::folder;
use tokio::{runtime::Handle, time::sleep};
use tollgate::config::Watch;

use crate::config_reload::writes::{NAME, renamed};
use tollgate_tests::prelude::*;

/// Set in the process of its own.
const CHILD: &str = "TOLLGATE_MANY_RELOADS";

/// Before these, what is kept for later use is made.
const WARM_UP: usize = 100;

const RELOADS: usize = 500;

/// All that a document can replace: another quota, a policy that comes and goes, a list, a fallback.
fn documents(server: &Server) -> [String; 2] {
    let url = server.url();
    let head = format!("[store]\nurl = \"{url}\"\ntimeout = \"300s\"\n");
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
    multi_thread(2).block_on(reload_often());
}

#[test]
fn hundreds_of_reloads_leave_no_connection_task_or_object() {
    let mut child = tollgate_tests::child::test(module_path!(), "child_process");
    let output = child.env(CHILD, "1").output().expect("its output");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    print!("{text}");
    assert!(text.contains("500 reloads"), "{text}");
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
    let watch = Watch::new(&file).registry(registry).every(ms(50));
    let watcher = watch.start(&layer).expect("a watch");
    // Reloads while requests are served, and then waits until none is.
    let reload = async |times: usize| {
        let ends = Arc::new(AtomicBool::new(false));
        let requests = [(); 2].map(|()| tokio::spawn(serve(layer.clone(), ends.clone())));
        for n in 0..times {
            renamed(folder.path(), &documents[n % 2]);
            watcher.reload().await.expect("a reload");
        }
        ends.store(true, Ordering::Relaxed);
        let mut served = 0;
        for request in requests {
            served += request.await.expect("no request fails");
        }
        served
    };
    reload(WARM_UP).await;
    // Permits of policies that are gone are renewed no more.
    sleep(secs(1)).await;
    let before = State::now(&server);
    let served = reload(RELOADS).await;
    let mut after = State::now(&server);
    // Some may be about to end. What half of the reloads had left behind would show.
    until("all but those before have ended", async || {
        after = State::now(&server);
        let counts = after.0.iter().zip(before.0);
        counts
            .into_iter()
            .all(|(after, before)| *after < before + RELOADS / 2)
    })
    .await;
    println!("{RELOADS} reloads, {served} requests meanwhile: {before:?}, then {after:?}");
    assert_eq!(watcher.status().failures(), 0);
}

/// Sends one request after the other, each of which must be admitted; returns how many.
async fn serve(layer: RateLimitLayer, ends: Arc<AtomicBool>) -> u64 {
    let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(())));
    let service = layer.layer(inner);
    let mut served = 0;
    while !ends.load(Ordering::Relaxed) {
        let mut request = Request::new(());
        request
            .extensions_mut()
            .insert(PeerAddr(([127, 0, 0, 1], 4321).into()));
        let Ok(response) = service.clone().oneshot(request).await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().contains_key("ratelimit"), "{response:?}");
        served += 1;
        // The reloads need the processor as well.
        sleep(ms(1)).await;
    }
    served
}

/// What may be left behind: connections, tasks, and objects in memory.
#[derive(Debug)]
struct State([usize; 3]);

impl State {
    fn now(server: &Server) -> Self {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        let memory = crate::ALLOCATOR.stats();
        Self([
            clients.lines().count(),
            Handle::current().metrics().num_alive_tasks(),
            memory.allocations - memory.deallocations,
        ])
    }
}
