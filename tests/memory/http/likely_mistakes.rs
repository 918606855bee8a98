//! What is probably a mistake is logged, as a suspicion and seldom.

use crate::http::{extractors::*, support::*};

fn routes() -> Router {
    Router::new().route("/users/{id}", get(async || ""))
}

#[tokio::test]
async fn a_matched_path_key_around_a_whole_router_logs_a_warning() {
    let (log, _guard) = Log::of_warnings();
    // Within the router there is nothing to suspect, also where no route matches.
    let layer = counted_by(extract::matched_path());
    let within = routes().fallback(async || "").layer(layer);
    assert_eq!(status(&within, "/users/1").await, 200);
    assert_eq!(status(&within, "/nowhere").await, 200);
    assert_eq!(log.text(), "");

    let around = counted_by(extract::matched_path()).layer(routes());
    for _ in 0..3 {
        assert_eq!(status(&around, "/users/1").await, 200);
    }
    let text = log.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    let parts = ["WARN", "matched_path", "probably", "`Router::layer`"];
    assert_contains(&text, parts);
}

#[tokio::test]
async fn an_unnamed_proxy_logs_a_warning_also_beside_named_ones() {
    let via = |peer: &str, header: Option<&'static str>| {
        let mut request = header.map_or(to("/"), |header| with(header, "198.51.100.7"));
        request.extensions_mut().insert(PeerAddr(address(peer)));
        request
    };
    let list = Some("x-forwarded-for");
    let client = extract::client_ip;
    let private = "10.0.0.7:1 127.0.0.1:1 [::1]:1 [fd00::1]:1 [::ffff:192.168.0.1]:1";
    let private = private.split(' ').map(|peer| (client(), peer, list));
    // A proxy beside the named ones.
    let beside = client().trusted_proxies(["10.1.0.0/16"]).forwarded();
    let beside = [(beside, "10.2.0.1:1", Some("forwarded"))];
    for (extractor, peer, header) in private.chain(beside) {
        let (log, _guard) = Log::of_warnings();
        let app = hello(&counted_by(extractor));
        for _ in 0..3 {
            assert_eq!(send(&app, via(peer, header)).await.status, 200);
        }
        let text = log.text();
        assert_eq!(text.lines().count(), 1, "{peer}: {text}");
        let header = header.expect("a header");
        assert_contains(&text, ["WARN", header, "probably", "trusted_proxies"]);
        let shown = address(peer).ip().to_canonical().to_string();
        assert_contains(&text, [&*shown]);
    }
    let (nothing, _guard) = Log::of_warnings();
    let app = hello(&counted_by(client()));
    // A public address may write what it likes, and a private one without the header is a client.
    send(&app, via("192.0.2.1:1", list)).await;
    send(&app, via("10.0.0.7:1", None)).await;
    let trusting = client().trusted_proxies(["10.0.0.0/8"]);
    send(&hello(&counted_by(trusting)), via("10.0.0.7:1", list)).await;
    assert_eq!(nothing.text(), "");
}
