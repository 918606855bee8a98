//! The client is the peer of the connection, whatever its headers contain.

use axum::extract::{ConnectInfo, connect_info::MockConnectInfo};

use crate::http::{extractors::*, support::*};

#[tokio::test]
async fn a_peer_counts_by_its_address_without_the_port() {
    #[rustfmt::skip]
    let requests = [
        (from(ConnectInfo(address("192.0.2.1:1234"))), ip("192.0.2.1")),
        (from(ConnectInfo(address("192.0.2.1:9"))), ip("192.0.2.1")),
        (from(MockConnectInfo(address("192.0.2.2:1"))), ip("192.0.2.2")),
        (from_peer("192.0.2.3:1"), ip("192.0.2.3")),
        // The same client over IPv6's mapping, and a subscriber's whole network.
        (from_peer("[::ffff:192.0.2.3]:1"), ip("192.0.2.3")),
        (from_peer("[2001:db8::1]:1"), ip("2001:db8::")),
        (from_peer("[2001:db8::ffff:1]:1"), ip("2001:db8::")),
        (from_peer("[2001:db8:0:1::1]:1"), ip("2001:db8:0:1::")),
    ];
    each_counts_as(extract::peer(), requests).await;
}

#[tokio::test]
async fn a_peer_address_set_by_the_application_is_preferred_to_the_servers() {
    let layer = counted_by(extract::peer());
    let request = Request::get("/")
        .extension(ConnectInfo(address("192.0.2.1:1")))
        .extension(PeerAddr(address("192.0.2.2:1")))
        .extension(MockConnectInfo(address("192.0.2.3:1")));
    send(&hello(&layer), empty(request)).await;
    assert_eq!(count(&layer, ip("192.0.2.2")).await, 1);
}

#[tokio::test]
async fn a_peer_is_counted_by_the_configured_prefix_of_its_address() {
    let [v4, v6] = ["198.51.100.7", "2001:db8:1:2::3"].map(|ip| ip.parse().expect(ip));
    let requests = [
        (from_peer("198.51.100.7:1"), Key::network(v4, 24, 48)),
        (from_peer("[2001:db8:1:2::3]:1"), Key::network(v6, 24, 48)),
        (from_peer("[2001:db8:1:3::3]:1"), Key::network(v6, 24, 48)),
    ];
    each_counts_as(extract::peer().ipv4_prefix(24).ipv6_prefix(48), requests).await;
}

#[tokio::test]
async fn clients_without_an_address_share_one_bucket_and_the_reason_is_logged() {
    let (log, _guard) = Log::of_errors();
    let quota = Quota::requests(3).per_hour();
    let (layer, _) = layer([Policy::new("p", quota)]);
    let app = hello(&layer);
    assert_eq!(statuses(&app, 5).await, [200, 200, 200, 429, 429]);
    assert_eq!(count(&layer, Key::missing()).await, 3);
    let text = log.text();
    assert_contains(&text, ["ERROR", "policy=\"p\"", "with axum 0.8"]);
    let server = "into_make_service_with_connect_info";
    assert_contains(&text, [server, "ConnectInfo", "`PeerAddr`"]);
    // Logged once, not for each request.
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(send(&app, from_peer("192.0.2.1:1")).await.status, 200);
    assert_eq!(log.text(), text, "a known address logs nothing");
}

#[tokio::test]
async fn while_clients_share_a_bucket_for_want_of_an_address_health_checks_warn() {
    // As of another version of axum.
    #[derive(Clone)]
    struct ConnectInfo;
    let (layer, _) = layer([Policy::new("p", quota("9/h"))]);
    let app = hello(&layer);
    let warnings = async || {
        let health = layer.limiter().health_check().await;
        assert!(health.is_healthy(), "{health:?}");
        let warnings = health.warnings().iter();
        warnings.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings().await, [""; 0]);
    for _ in 0..2 {
        send(&app, from(ConnectInfo)).await;
        let [warning] = &warnings().await[..] else {
            panic!("a warning");
        };
        let parts = ["\"p\"", "share one bucket", "axum 0.8", "`PeerAddr`"];
        assert_contains(warning, parts);
        send(&app, from_peer("192.0.2.1:1")).await;
        assert_eq!(warnings().await, [""; 0]);
    }
}

#[tokio::test]
async fn requests_that_are_to_share_a_bucket_are_no_mistake() {
    let tenants = Policy::new("p", quota("1/h")).key(extract::header("x-tenant"));
    let (layer, _) = layer([tenants.missing_key(MissingKey::Shared)]);
    let app = hello(&layer);
    assert_eq!(statuses(&app, 2).await, [200, 429]);
    assert!(layer.limiter().health_check().await.warnings().is_empty());
    assert_eq!(send(&app, to("/")).await.detail(), "");
}

/// Tests are debug builds.
#[tokio::test]
async fn in_a_debug_build_a_rejection_says_that_clients_share_a_bucket() {
    let app = app([Policy::new("p", quota("1/h"))]);
    assert_eq!(status(&app, "/").await, 200);
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.violated(), ["p"]);
    let parts = ["policy p", "debug builds only", "axum 0.8", "`PeerAddr`"];
    assert_contains(rejected.detail(), parts);
    let client = || from_peer("192.0.2.1:1");
    assert_eq!(send(&app, client()).await.status, 200);
    assert_eq!(send(&app, client()).await.detail(), "");
}

#[tokio::test]
async fn a_tuple_without_an_address_counts_by_its_other_parts_and_the_reason_is_logged() {
    let (log, _guard) = Log::of_errors();
    let layer = counted_by((extract::peer(), extract::path()));
    assert_eq!(status(&hello(&layer), "/").await, 200);
    let key = Key::tuple([Key::missing(), Key::new("/")]);
    assert_eq!(count(&layer, key).await, 1);
    assert!(log.text().contains("ConnectInfo"), "{}", log.text());
}
