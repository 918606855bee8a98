//! Slots that move from one master to another while requests for them are sent.

use tokio::runtime::Handle;

use crate::cluster::support::*;

/// A limiter with so few tags that all keys are in one slot.
fn in_one_slot(cluster: &Cluster, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let store = builder(cluster.urls()).hash_tags(1);
    limiter(store.built(), policies)
}

/// The slot of all keys, and the master that serves it.
fn slot(cluster: &Cluster) -> (i64, usize) {
    let found = keys(cluster, "");
    let (key, master) = found.first().expect("a key");
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", key]);
    (slot.int(), *master)
}

/// Waits until a request has been turned away since its keys are on two nodes. Before 7.0 that is by the node that they go to.
async fn turned_away(cluster: &Cluster) {
    let by = |node: &Server| node.info("errorstats", "errorstat_TRYAGAIN").is_some();
    let turned_away = async || cluster.nodes().iter().any(by);
    until("it has been turned away", turned_away).await;
}

async fn send_all(limiter: &Limiter, keys: std::ops::Range<u64>) -> usize {
    let pending = keys.map(|key| admits(limiter, Key::new(format!("{key}"))));
    let admitted = join_all(pending).await.into_iter();
    admitted.filter(|admitted| *admitted).count()
}

#[tokio::test]
async fn keys_on_the_source_on_the_target_and_on_neither_are_all_counted() {
    let cluster = Cluster::start(3, 0);
    for strategy in [Gcra, Fixed, List] {
        cluster.nodes().iter().for_each(|node| node.flush());
        let limiter = in_one_slot(&cluster, [strategy.policy("p", "3/month")]);
        assert_eq!(send_all(&limiter, 0..100).await, 100);
        let (slot, from) = slot(&cluster);
        let moving = cluster.begin_move(slot, (from + 1) % 3);
        assert_eq!(moving.keys(40), 40);
        // Of these, sixty are on the source, forty on the target, and fifty on neither; many are sent at once.
        assert_eq!(send_all(&limiter, 0..150).await, 150, "{strategy:?}");
        assert_eq!(send_all(&limiter, 0..150).await, 150, "{strategy:?}");
        assert_eq!(send_all(&limiter, 0..100).await, 0, "{strategy:?}");
        moving.end();
        assert_eq!(send_all(&limiter, 0..150).await, 50, "{strategy:?}");
        assert_eq!(send_all(&limiter, 0..150).await, 0, "{strategy:?}");
        let found = keys(&cluster, "");
        assert!(found.iter().all(|(_, master)| *master == (from + 1) % 3));
        assert_eq!(found.len(), 150);
        for node in cluster.nodes() {
            assert_eq!(node.immortal_keys(), [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_request_whose_keys_have_moved_in_part_waits_for_the_others_or_fails_uncharged() {
    let cluster = Cluster::start(3, 0);
    for ends_in_time in [true, false] {
        cluster.nodes().iter().for_each(|node| node.flush());
        cluster.nodes().iter().for_each(Server::reset_stats);
        let store = builder(cluster.urls()).hash_tags(1);
        let store = store.runtime(Handle::current()).built();
        let limiter_of = |names: &[&str]| {
            limiter(
                store.clone(),
                names.iter().map(|name| Gcra.policy(name, "3/month")),
            )
        };
        let (limiter, beside) = (limiter_of(&["a", "b"]), limiter_of(&["beside"]));
        assert!(admits(&limiter, "k").await);
        let (slot, from) = slot(&cluster);
        let moving = cluster.begin_move(slot, (from + 1) % 3);
        assert_eq!(moving.keys(1), 1);
        let waiting = tokio::spawn(limiter.check(Key::new("k")).into_future());
        turned_away(&cluster).await;
        // A key that is on neither node is redirected meanwhile.
        assert!(admits(&beside, "new").await);
        assert!(!waiting.is_finished());
        if ends_in_time {
            moving.end();
            assert!(admitted_by_store(&waiting.await.expect("a response")));
            assert_eq!(used(&limiter, Key::new("k")).await, [2, 2]);
        } else {
            let time = StillTime::new();
            time.time_out().await;
            let decision = waiting.await.expect("a response");
            time.end();
            assert_eq!(store_error(&decision).code(), "timeout");
            moving.end();
            assert_eq!(used(&limiter, Key::new("k")).await, [1, 1]);
        }
    }
}

/// The last permit's release deletes the key, so the next request of the same call finds none on the source.
#[tokio::test]
async fn a_permit_that_is_released_while_its_slot_moves_is_taken_again() {
    let cluster = Cluster::start(3, 0);
    let limiter = in_one_slot(&cluster, [Policy::new("p", Quota::concurrent(1))]);
    let held = limiter.admit(Key::new("k")).await;
    assert!(admitted_by_store(&held));
    let (slot, from) = slot(&cluster);
    let moving = cluster.begin_move(slot, (from + 1) % 3);
    drop(held);
    let next = limiter.admit(Key::new("k")).await;
    assert!(admitted_by_store(&next), "{next:?}");
    moving.end();
    assert_eq!(used(&limiter, Key::new("k")).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_back_and_forth_under_load_admit_exactly_the_quota() {
    let cluster = Arc::new(Cluster::start(3, 0));
    for strategy in [Gcra, Log] {
        cluster.nodes().iter().for_each(|node| node.flush());
        let limiters = [0, 1].map(|_| in_one_slot(&cluster, [strategy.policy("p", "40/month")]));
        assert_eq!(send_all(&limiters[0], 0..50).await, 50);
        let (slot, from) = slot(&cluster);
        let done = Arc::new(AtomicBool::new(false));
        // How many results each task has had.
        let rounds: Arc<[AtomicU64; 64]> = Arc::new([const { AtomicU64::new(0) }; 64]);
        let mover = {
            let (cluster, done, rounds) = (cluster.clone(), done.clone(), rounds.clone());
            let count = move || rounds.iter().map(|r| r.load(Ordering::Relaxed)).collect();
            std::thread::spawn(move || {
                let mut moves = 0;
                while moves < 4 || !done.load(Ordering::Relaxed) {
                    moves += 1;
                    let before: Vec<u64> = count();
                    let moving = cluster.begin_move(slot, (from + moves) % 3);
                    while moving.keys(3) > 0 {}
                    moving.end();
                    // No request is still on its way to where it was redirected: it might arrive when the slot is on its way
                    // there again, and find no key.
                    let all_answered = || {
                        let now: Vec<u64> = count();
                        let mut tasks = now.iter().zip(&before);
                        tasks.all(|(now, before)| *now >= 100 || now > before)
                    };
                    while !all_answered() {
                        std::thread::yield_now();
                    }
                }
                moves
            })
        };
        let admitted = Arc::new(AtomicU64::new(50));
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let (limiter, admitted) = (limiters[task % 2].clone(), admitted.clone());
                let rounds = rounds.clone();
                tokio::spawn(async move {
                    for round in 0..100 {
                        let key = (task * 31 + round * 7) % 50;
                        let decision = limiter.check(Key::new(format!("{key}"))).await;
                        admitted.fetch_add(admitted_by_store(&decision).into(), Ordering::Relaxed);
                        rounds[task].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task ends well");
        }
        done.store(true, Ordering::Relaxed);
        let moves = mover.join().expect("the mover ends well");
        assert!(moves >= 4);
        // Six thousand and four hundred requests for a quota of two thousand.
        for key in 0..50 {
            let used = used(&limiters[0], Key::new(format!("{key}"))).await;
            assert_eq!(used, [40], "{strategy:?}");
        }
        assert_eq!(admitted.load(Ordering::Relaxed), 2_000, "{strategy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_several_slots_go_on_while_one_of_them_moves() {
    let cluster = Arc::new(Cluster::start(3, 0));
    let master_keys = MasterKeys::find(&cluster, "go").await;
    // A window's end is moved by as long as its key is on the way, and what was charged before then isn't found any more by
    // refunds.
    let policies = || ["a", "b", "c"].map(|name| Log.policy(name, "300/month"));
    let limiters = [0, 1].map(|_| limiter(store(&cluster), policies()));
    let slot = master_keys.slot(&cluster, 0);
    let mover = {
        let cluster = cluster.clone();
        std::thread::spawn(move || {
            for to in [1, 2, 0, 2, 1, 0] {
                let moving = cluster.begin_move(slot, to);
                while moving.keys(1) > 0 {}
                moving.end();
            }
        })
    };
    let admitted = hammer(&limiters, master_keys.apart(), 64, 1_000).await;
    mover.join().expect("the mover ends well");
    assert!(admitted <= 300);
    assert_eq!(used(&limiters[0], master_keys.apart()).await, [admitted; 3]);
}

/// The map of slots is changed by the redirect itself, before it is read anew.
#[tokio::test]
async fn a_request_for_a_slot_that_has_moved_is_redirected_once() {
    let cluster = Cluster::start(3, 0);
    let limiter = in_one_slot(&cluster, [Gcra.policy("p", "100/month")]);
    assert!(admits(&limiter, "key").await);
    let (slot, from) = slot(&cluster);
    cluster.begin_move(slot, (from + 1) % 3).end();
    let redirects = || {
        let line = cluster.nodes()[from].info("errorstats", "errorstat_MOVED");
        let count = line.and_then(|line| line.strip_prefix("count=")?.parse::<u64>().ok());
        count.unwrap_or(0)
    };
    let before = redirects();
    for _ in 0..3 {
        assert!(admits(&limiter, "key").await);
        // None, if a connection that was lost had the map read anew meanwhile.
        assert!(redirects() <= before + 1);
    }
}

/// A node that is to get its first slots is not yet one of those that serve.
#[tokio::test]
async fn requests_do_not_each_connect_to_a_node_that_has_just_joined() {
    let cluster = Cluster::start(3, 0);
    let limiter = in_one_slot(&cluster, [Gcra.policy("p", "3/month")]);
    assert_eq!(send_all(&limiter, 0..10).await, 10);
    let (slot, from) = slot(&cluster);
    let new = Server::builder().arg("cluster-enabled", "yes");
    let new = new.arg("cluster-announce-ip", "127.0.0.1").start();
    let old = &cluster.nodes()[from];
    let id = |node: &Server| node.command(&["CLUSTER", "MYID"]).text();
    let meet = ["CLUSTER", "MEET", "127.0.0.1", &old.port().to_string()];
    new.command(&meet).ok();
    until("they have met", async || {
        let knows = |node: &Server, other| {
            let nodes = node.command(&["CLUSTER", "NODES"]).text();
            nodes.contains(&id(other))
        };
        let serves = new.command(&["CLUSTER", "INFO"]).text();
        knows(&new, old) && knows(old, &new) && serves.contains("cluster_state:ok")
    })
    .await;
    let set_slot = |node: &Server, state, other| {
        let slot = slot.to_string();
        node.command(&["CLUSTER", "SETSLOT", &slot, state, &id(other)])
            .ok();
    };
    set_slot(&new, "IMPORTING", old);
    set_slot(old, "MIGRATING", &new);
    let connections = || {
        let received = new.info("stats", "total_connections_received");
        received.and_then(|many| many.parse::<u64>().ok())
    };
    let before = connections().expect("a number");
    // Keys that are nowhere yet are made there.
    for key in 100..200 {
        assert_eq!(send_all(&limiter, key..key + 1).await, 1);
    }
    assert_eq!(new.keys().len(), 100);
    let more = connections().expect("a number") - before;
    // Those of this test and of the other nodes included.
    assert!(more < 50, "{more} connections for 100 requests");
}
