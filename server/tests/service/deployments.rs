//! Redis as it is deployed: with a password, encrypted, as a cluster, and behind Sentinels.

use testkit::{Cluster, Sentinel};
use tollgate_server::{rules::Unit, serve::Server};

use crate::{
    client::{Client, descriptor},
    scene::{TEST_TIMEOUT, limit, options, rules},
    tls::Authority,
};

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_on_redis_however_it_is_deployed() {
    let guarded = testkit::Server::builder().password("p:a/s@s").start();
    let by_user = testkit::Server::start();
    by_user.acl("limits", "secret", "~ratelimit:* +@all");
    let authority = Authority::new();
    let [certificate, key, ca] = ["cert.pem", "key.pem", "ca.pem"].map(|name| authority.path(name));
    let port = testkit::free_port().to_string();
    let encrypted = testkit::Server::builder()
        .arg("tls-port", &port)
        .arg("tls-cert-file", &certificate)
        .arg("tls-key-file", &key)
        .arg("tls-ca-cert-file", &ca)
        .arg("tls-auth-clients", "yes")
        .start();
    let cluster = Cluster::start(3, 0);

    let sentinels = Sentinel::start();
    for sentinel in sentinels.sentinels() {
        // No failover, however long the machine stands still.
        let name = sentinels.master_name();
        sentinel.command(&["SENTINEL", "SET", name, "down-after-milliseconds", "600000"]);
    }

    let of_cluster = cluster.urls().join(",");
    let of_sentinels = sentinels.sentinel_urls().join(",");
    let tls = format!("rediss://localhost:{port}");
    let timeout = TEST_TIMEOUT.as_millis().to_string();
    for (flags, nodes) in [
        (vec!["--redis-url", &guarded.url()], &[&guarded][..]),
        (
            vec!["--redis-url", &by_user.url_as("limits", "secret")],
            &[&by_user],
        ),
        (
            vec![
                "--redis-url",
                &tls,
                "--redis-ca",
                &ca,
                "--redis-cert",
                &certificate,
                "--redis-key",
                &key,
            ],
            &[&encrypted],
        ),
        (
            vec!["--redis-cluster", &of_cluster],
            &cluster.nodes().iter().collect::<Vec<_>>(),
        ),
        (
            vec![
                "--redis-sentinels",
                &of_sentinels,
                "--redis-master",
                sentinels.master_name(),
            ],
            &[sentinels.master()],
        ),
    ] {
        let flags = [&flags[..], &["--redis-timeout", &timeout]].concat();
        let rules = rules([limit("user", "", 1, Unit::Year)]);
        let server = Server::start(&options(&flags), &rules).await;
        let server = server.expect("a server");
        let client = Client::of(&server);
        let users: Vec<String> = (0..20).map(|user| format!("user-{user}")).collect();
        for user in &users {
            for expected in [true, false] {
                let passed = client.passes(descriptor([("user", user)])).await;
                assert_eq!(passed, expected, "{user} by {flags:?}");
            }
        }
        let keys = nodes.iter().flat_map(|node| node.keys());
        let keys: Vec<String> = keys.collect();
        let is_stored = |user: &String| keys.iter().any(|key| key.contains(user.as_str()));
        assert!(users.iter().all(is_stored), "{keys:?} by {flags:?}");
    }
}
