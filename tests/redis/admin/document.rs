//! What is in force: policies, the configuration, and what shadow policies would change.

use tollgate::{
    admin::Admin,
    config::{Document, Registry, Watch},
};
use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

#[tokio::test]
async fn policies_are_listed_in_their_order_with_quota_strategy_key_and_lease() {
    let (limiter, _) = support::in_process();
    let next = || {
        let leased = Policy::new("leased", Quota::requests(1_000).per_second());
        let leased = leased.lease(Lease::max_units(64).ttl(Duration::from_micros(7_125)));
        support::policies().into_iter().chain([leased])
    };
    let next = next().fold(Limiter::builder(), LimiterBuilder::policy);
    limiter.reconfigure(next).expect("a change");
    let answer = Api::of(&limiter).get("/policies").await.json;
    assert_eq!(answer["generation"], 1, "how often they were replaced");
    let api = json!({
        "name": "api", "role": "live", "quota": "10/min", "units": 10, "period_seconds": 60.0, "burst": 10, "strategy": "gcra",
        "key": "header:x-api-key",
    });
    let address = json!({
        "name": "address", "role": "live", "quota": "100/h burst 20", "units": 100, "period_seconds": 3600.0, "burst": 20,
        "strategy": "gcra", "key": "peer",
    });
    let shared = json!({
        "name": "shared", "role": "live", "quota": "5/min", "units": 5, "period_seconds": 60.0, "burst": 5,
        "strategy": "list_window", "key": "global",
    });
    let exports = json!({
        "name": "exports", "role": "live", "quota": "2 concurrent", "units": 2, "burst": 2, "strategy": "concurrency", "key": "code",
    });
    let policies = answer["policies"].as_array().expect("policies");
    assert_eq!(policies[..4], [api, address, shared, exports]);
    let others = json!([
        {"name": "leased", "lease": {"max_units": 64, "ttl_ms": 7.125}},
        {"name": "abuse", "role": "ban"},
        {"name": "blocked", "lease": null},
        {"name": "api-next", "role": "shadow"},
    ]);
    assert_has(&json!(policies[4..]), others);
}

#[tokio::test]
async fn the_configuration_of_a_layer_includes_the_layer_s_own_settings() {
    let (limiter, _) = support::in_process();
    let layer = RateLimitLayer::new(limiter.clone()).headers(RateLimitHeaders::x_ratelimit());
    let of_layer = Api::of(&layer).get("/config").await.json;
    let document = of_layer["document"].as_str().expect("text");
    assert_contains(document, ["[policies.api]", "headers"]);
    // One of the keys is code.
    assert_eq!(of_layer["loadable"], false);
    let of_limiter = Api::of(&limiter).get("/config").await.json;
    let document = of_limiter["document"].as_str().expect("text");
    assert!(!document.contains("headers"), "{document}");
}

#[tokio::test]
async fn the_state_of_a_watch_is_part_of_the_configuration() {
    let folder = testkit::folder();
    let file = folder.path().join("limits.toml");
    fs::write(&file, "[policies.api]\nquota = \"10/min\"\n").expect("a file");
    let document = Document::load(&file).expect("a document");
    let layer = document.layer(&Registry::new()).expect("a layer");
    // It reads the file only when it is told to.
    let watch = Watch::new(&file).every(secs(3_600));
    let watcher = Arc::new(watch.start(&layer).expect("a watcher"));
    watcher.reload().await.expect("a reload");
    let admin = Admin::new(&layer).token("ops", TOKEN);
    let api = Api::with(admin.watcher(watcher.clone()));
    let config = api.get("/config").await.json;
    let watch = json!({"hash": watcher.status().hash(), "path": file.to_str()});
    assert_has(&config, json!({"loadable": true, "watch": watch}));

    fs::write(&file, "[policies.api]\nquota = \"ten\"\n").expect("a file");
    assert!(watcher.reload().await.is_err());
    let watch = &api.get("/config").await.json["watch"];
    assert_contains(watch["last_failure"].as_str().unwrap_or_default(), ["ten"]);
    assert_eq!(watch["failures"], 1);
    let [loaded, attempted] =
        ["loaded_at", "last_attempt_at"].map(|field| watch[field].as_str().unwrap_or_default());
    assert!(loaded.ends_with('Z') && attempted > loaded, "{watch}");
}

#[tokio::test]
async fn shadow_policies_report_what_they_would_reject() {
    let (limiter, _) = support::in_process();
    for _ in 0..8 {
        let key = Key::secret("sk_1");
        let _ = limiter.check([("api", key), ("api-next", key)]).await;
    }
    let shadows = Api::of(&limiter).get("/shadows").await.json;
    let expected = json!([{"policy": "api-next", "evaluated": 8, "would_reject": 3}]);
    assert_eq!(shadows["shadows"], expected);
}
