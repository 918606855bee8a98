//! What is in force: policies, the configuration document, and what shadow policies would change.

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
async fn the_configuration_is_the_text_of_the_document_that_was_loaded_last() {
    let folder = testkit::folder();
    let file = folder.path().join("limits.toml");
    let text = |quota: &str| format!("# A comment.\n[policies.api]\nquota = \"{quota}\"\n");
    // The watch may read the file at any time.
    let write = |quota: &str| {
        let other = folder.path().join("other");
        fs::write(&other, text(quota)).expect("a file");
        fs::rename(&other, &file).expect("a file");
    };
    write("10/min");
    let document = Document::load(&file).expect("a document");
    let layer = document.layer(&Registry::new()).expect("a layer");
    let admin = || Admin::new(&layer).token("ops", TOKEN);
    let none = Api::with(admin()).get("/config").await.json;
    assert_eq!(none, json!({}));
    let loaded = Api::with(admin().document(&document)).get("/config").await;
    assert_eq!(loaded.json, json!({"document": text("10/min")}));

    let watch = Watch::new(&file).every(secs(3_600));
    let watcher = Arc::new(watch.start(&layer).expect("a watcher"));
    write("20/min");
    watcher.reload().await.expect("a reload");
    let api = Api::with(admin().document(&document).watcher(watcher.clone()));
    let config = api.get("/config").await.json;
    let watch = json!({"hash": watcher.status().hash(), "path": file.to_str()});
    assert_has(&config, json!({"document": text("20/min"), "watch": watch}));

    write("ten");
    assert!(watcher.reload().await.is_err());
    let config = api.get("/config").await.json;
    assert_eq!(config["document"], text("20/min"));
    let watch = &config["watch"];
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
        let _ = limiter.admit([("api", key), ("api-next", key)]).await;
    }
    let shadows = Api::of(&limiter).get("/shadows").await.json;
    let expected = json!([{"policy": "api-next", "evaluated": 8, "would_reject": 3}]);
    assert_eq!(shadows["shadows"], expected);
}
