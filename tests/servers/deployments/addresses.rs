//! What a URL can contain.

use testkit::Sentinel;
use tokio::runtime::Handle;
use tollgate_tests::{clocks::StillTime, servers};

use crate::deployments::support::*;

#[tokio::test]
async fn a_user_with_few_rights_suffices_on_a_cluster_also_after_an_outage() {
    let cluster = Cluster::start(3, 0);
    for node in cluster.nodes() {
        let rights = servers::of_a_limiter(node) + " +cluster|slots +asking";
        node.acl("limits", "s3cret", &rights);
    }
    let urls = cluster
        .nodes()
        .iter()
        .map(|node| node.url_as("limits", "s3cret"));
    let store = RedisStore::builder()
        .cluster(urls)
        .runtime(Handle::current());
    let limiter = limiter(patient(store.circuit_breaker_threshold(1)), 1_000);
    let health = limiter.health_check().await;
    assert!(health.is_healthy(), "{health:?}");
    assert!(admitted_by_store(&limiter.check(key()).await));
    cluster.nodes().iter().for_each(Server::pause);
    let check = tokio::spawn(limiter.check(key()).into_future());
    let time = StillTime::new();
    time.time_out().await;
    let timed_out = check.await.expect("a response");
    assert_eq!(store_error(&timed_out).code(), "timeout");
    let next = limiter.check(key()).await;
    assert_eq!(store_error(&next).code(), "circuit_open");
    time.end();
    cluster.nodes().iter().for_each(Server::resume);
    let is_back = async || limiter.check(key()).await.source() == DecisionSource::Store;
    until("a probe has found that it is back", is_back).await;
}

#[tokio::test]
async fn a_password_and_a_user_with_few_rights_suffice() {
    let server = Server::builder().password("p@ss/word").start();
    counts(&at(&server.url())).await;
    server.acl("limits", "s3cret", &servers::of_a_limiter(&server));
    server.flush();
    let few = at(&server.url_as("limits", "s3cret"));
    counts(&few).await;
    let health = few.health_check().await;
    assert!(health.is_healthy(), "{health:?}");
    let wrong = at(&server.url_as("limits", "other")).check(key()).await;
    let error = store_error(&wrong).to_string();
    assert!(error.contains("authentication"), "{error}");
    assert!(!error.contains("other"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_is_connected_to() {
    let server = Server::builder().unix_socket().start();
    let url = server.url();
    assert!(url.starts_with("redis+unix://"), "{url}");
    counts(&at(&url)).await;
    server.flush();
    let path = server.socket().expect("a socket").display().to_string();
    counts(&at(&format!("unix://{path}"))).await;
}

#[tokio::test]
async fn the_configured_database_is_used() {
    let server = Server::start();
    counts(&at(&server.url())).await;
    // Another database, other counts.
    counts(&at(&format!("{}/7", server.url()))).await;
    let space = server.command(&["INFO", "keyspace"]).text();
    assert!(
        space.contains("db0:keys=") && space.contains("db7:keys="),
        "{space}"
    );
    let none = at(&format!("{}/99", server.url())).check(key()).await;
    assert!(
        matches!(store_error(&none), StoreError::Server { .. }),
        "{none:?}"
    );
}

#[tokio::test]
async fn a_master_behind_sentinels_is_connected_to_as_configured() {
    let group = Sentinel::start();
    for server in group.servers() {
        server.acl("limits", "s3cret", "~* +@all");
    }
    let store = RedisStore::builder()
        .sentinel(group.master_name(), group.sentinel_urls())
        .server_url_template("redis://limits:s3cret@any/3");
    let limiter = limiter(patient(store), 9);
    assert!(admitted_by_store(&limiter.check(key()).await));
    let space = group.master().command(&["INFO", "keyspace"]).text();
    assert!(space.contains("db3:keys=1,"), "{space}");
    let users = group.master().command(&["CLIENT", "LIST"]).text();
    assert!(users.contains("user=limits"), "{users}");
}
