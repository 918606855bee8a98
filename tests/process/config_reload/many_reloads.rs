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
    let store = format!("[store]\nurl = '{}'\ntimeout = '300s'\n", server.url());
    [
        "deny = [{ addresses = ['192.0.2.0/24'] }]
        [policies.api]
        quota = '1000000/hour'
        key = 'global'
        [policies.day]
        quota = '1000000/day'
        key = 'global'
        strategy = 'fixed_window'\n",
        "on_store_error = { local_fallback = { processes = 4 } }
        [policies.api]
        quota = '2000000/hour'
        key = 'global'
        [policies.in_flight]
        quota = '100 concurrent'
        strategy = 'concurrency ttl 1s'
        key = 'global'\n",
    ]
    .map(|settings| settings.to_owned() + &store)
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
    let document = Document::load(&file).expect("a document");
    let limiter = document.limiter(&Registry::new()).expect("a limiter");
    let watch = Watch::new(&file).every(ms(50));
    let watcher = watch.start(&limiter).expect("a watch");
    // Reloads while requests are served, and then waits until none is.
    let reload = async |times: usize| {
        let ends = Arc::new(AtomicBool::new(false));
        let requests = [(); 2].map(|()| tokio::spawn(ask(limiter.clone(), ends.clone())));
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
async fn ask(limiter: Limiter, ends: Arc<AtomicBool>) -> u64 {
    let mut admitted = 0;
    while !ends.load(Ordering::Relaxed) {
        let decision = limiter.check(Key::global()).await;
        assert!(admitted_by_store(&decision), "{decision:?}");
        admitted += 1;
        // The reloads need the processor as well.
        sleep(ms(1)).await;
    }
    admitted
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
