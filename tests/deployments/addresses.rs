//! What a URL can say.

use testkit::{Sentinel, Server};
use tollgate::{RedisStore, StoreError};

use crate::support::{PATIENCE, at, counted, counts, fault, key, limiter};

#[tokio::test]
async fn a_password_and_a_user_with_few_rights() {
    let server = Server::builder().password("p@ss/word").start();
    counts(&at(&server.url())).await;
    let rules = "~tg:* +evalsha +eval +ping +get +set +pttl +pexpireat +pexpiretime +time +client";
    server.acl("limits", "s3cret", rules);
    server.flush();
    counts(&at(&server.url_as("limits", "s3cret"))).await;
    let wrong = at(&server.url_as("limits", "other")).check(key()).await;
    let error = fault(&wrong).to_string();
    assert!(error.contains("authentication"), "{error}");
    assert!(!error.contains("other"), "{error}");
}

#[tokio::test]
async fn a_unix_socket() {
    let server = Server::builder().unix_socket().start();
    let url = server.url();
    assert!(url.starts_with("redis+unix://"), "{url}");
    counts(&at(&url)).await;
    server.flush();
    let path = server.socket().expect("a socket").display().to_string();
    counts(&at(&format!("unix://{path}"))).await;
}

#[tokio::test]
async fn a_database_of_its_own() {
    let server = Server::start();
    counts(&at(&server.url())).await;
    // Another database, other counts.
    counts(&at(&format!("{}/7", server.url()))).await;
    let space = server.command(&["INFO", "keyspace"]).text();
    assert!(
        space.contains("db0:keys=1,") && space.contains("db7:keys=1,"),
        "{space}"
    );
    let none = at(&format!("{}/99", server.url())).check(key()).await;
    assert!(
        matches!(fault(&none), StoreError::Server { .. }),
        "{none:?}"
    );
}

#[tokio::test]
async fn a_prefix_of_its_own() {
    let server = Server::start();
    for prefix in ["a:", "b:", ""] {
        let store = RedisStore::builder()
            .url(server.url())
            .prefix(prefix)
            .deadline(PATIENCE);
        counts(&limiter(store.build().expect("a store"), 3)).await;
    }
    assert_eq!(server.keys(), ["a:g1:p:k", "b:g1:p:k", "g1:p:k"]);
}

#[tokio::test]
async fn a_master_behind_sentinels_is_connected_to_as_is_said() {
    let group = Sentinel::start();
    for server in group.servers() {
        server.acl("limits", "s3cret", "~* +@all");
    }
    let store = RedisStore::builder()
        .sentinel(group.master_name(), group.sentinel_urls())
        .server_like("redis://limits:s3cret@any/3")
        .deadline(PATIENCE);
    let limiter = limiter(store.build().expect("a store"), 9);
    assert!(counted(&limiter.check(key()).await));
    let space = group.master().command(&["INFO", "keyspace"]).text();
    assert!(space.contains("db3:keys=1,"), "{space}");
    let users = group.master().command(&["CLIENT", "LIST"]).text();
    assert!(users.contains("user=limits"), "{users}");
}
