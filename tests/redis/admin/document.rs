//! What is in force: policies, the configuration, and what shadow policies would change.

use tollgate::{
    admin::Admin,
    config::{Document, Registry, Watch},
};
use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

#[tokio::test]
async fn policies_are_listed_in_their_order_with_quota_strategy_and_key() {
    let answer = support::api().get("/policies").await.json;
    let policies = answer["policies"].as_array().expect("policies");
    let names = policies.iter().map(|policy| policy["name"].as_str());
    let names: Vec<_> = names.flatten().collect();
    let expected = [
        "api", "address", "shared", "exports", "abuse", "blocked", "api-next",
    ];
    assert_eq!(names, expected);
    let expected = [
        json!({
            "name": "api", "role": "live", "quota": "10/min", "units": 10, "period_seconds": 60.0, "burst": 10,
            "strategy": "gcra", "key": "header:x-api-key",
        }),
        json!({
            "name": "address", "role": "live", "quota": "100/h burst 20", "units": 100, "period_seconds": 3600.0, "burst": 20,
            "strategy": "gcra", "key": "peer",
        }),
        json!({
            "name": "shared", "role": "live", "quota": "5/min", "units": 5, "period_seconds": 60.0, "burst": 5,
            "strategy": "list_window", "key": "global",
        }),
        json!({
            "name": "exports", "role": "live", "quota": "2 concurrent", "units": 2, "burst": 2,
            "strategy": "concurrency", "key": "code",
        }),
    ];
    assert_eq!(policies[..4], expected);
    assert_eq!(policies[4]["role"], "ban");
    assert_eq!(policies[6]["role"], "shadow");
    assert_eq!(policies[6]["shadow_of"], "api");
}

#[tokio::test]
async fn the_generation_says_how_often_the_policies_were_replaced() {
    let (limiter, _) = support::in_process();
    let api = Api::of(&limiter);
    let policies = support::policies().into_iter();
    let builder = policies.fold(Limiter::builder(), |all, one| all.policy(one));
    limiter.reconfigure(builder).expect("a change");
    assert_eq!(api.get("/policies").await.json["generation"], 1);
}

#[tokio::test]
async fn the_configuration_of_a_layer_includes_the_layer_s_own_settings() {
    let (limiter, _) = support::in_process();
    let layer = RateLimitLayer::new(limiter.clone()).headers(RateLimitHeaders::x_ratelimit());
    let of_layer = Api::of(&layer).get("/config").await.json;
    let document = of_layer["document"].as_str().expect("text");
    for part in ["[policies.api]", "headers"] {
        assert!(document.contains(part), "{document}");
    }
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
    let watcher = watch.start(&layer).expect("a watcher");
    watcher.reload().await.expect("a reload");
    let watcher = Arc::new(watcher);
    let admin = Admin::new(&layer).token("ops", TOKEN);
    let router = admin.watcher(watcher.clone()).router();
    let api = Api(router.expect("an admin API"));
    let config = api.get("/config").await.json;
    assert_eq!(config["loadable"], true);
    assert_eq!(config["watch"]["hash"].as_str(), watcher.status().hash());
    assert_eq!(config["watch"]["path"].as_str(), file.to_str());
    let loaded_at = config["watch"]["loaded_at"].as_str().unwrap_or_default();
    assert!(loaded_at.ends_with('Z'), "{loaded_at}");

    fs::write(&file, "[policies.api]\nquota = \"ten\"\n").expect("a file");
    assert!(watcher.reload().await.is_err());
    let watch = &api.get("/config").await.json["watch"];
    let failure = watch["last_failure"].as_str().unwrap_or_default();
    assert!(failure.contains("ten"), "{failure}");
    assert_eq!(watch["failures"], 1);
    let [loaded, attempted] = ["loaded_at", "last_attempt_at"].map(|field| watch[field].as_str());
    assert!(attempted > loaded, "{watch}");
}

#[tokio::test]
async fn shadow_policies_report_how_they_would_differ() {
    let (limiter, _) = support::in_process();
    for _ in 0..8 {
        let _ = limiter.check(("api", Key::secret("sk_1"))).await;
    }
    let shadows = Api::of(&limiter).get("/shadows").await.json;
    let expected = json!([{"policy": "api-next", "shadow_of": "api", "evaluated": 8, "stricter": 3, "looser": 0}]);
    assert_eq!(shadows["shadows"], expected);
}
