//! Documents that are put in force in a running limiter or layer.

use tollgate::{Limiter, RedisStore, config::Registry};

use crate::support::{document, registry};

/// A document of a limiter on Redis; nothing connects.
const ON_REDIS: &str = r#"
[store]
url = "redis://user:s3cr3t@127.0.0.1:1/2"
timeout = "50ms"
rejection_cache = { staleness = "2s", capacity = 500 }

[policies.api]
quota = "10/min"
"#;

#[tokio::test]
async fn a_document_changes_the_policies_of_a_running_limiter() {
    let registry = registry();
    let limiter = document("[policies.api]\nquota = '10/min'")
        .limiter(&registry)
        .expect("a limiter");
    assert!(limiter.check("alice").times(5).await.is_admitted());
    let next =
        document("[policies.api]\nquota = '20/min'\n[policies.new]\nquota = '5/s'\ncost = 3");
    let changes = next.reconfigure(&limiter, &registry).expect("valid");
    let api = changes.policy("api").expect("a change");
    assert_eq!(
        (api.settings()[0].from(), api.settings()[0].to()),
        ("10/min", "20/min")
    );
    assert_eq!(
        limiter
            .peek("alice")
            .await
            .expect("a status")
            .policy("api")
            .expect("api")
            .remaining(),
        10
    );
    let changes = next.reconfigure(&limiter, &registry).expect("valid");
    assert!(changes.is_empty(), "{changes}");
    assert_eq!(limiter.document().policies, next.policies);
}

#[test]
fn a_layer_is_reconfigured_with_its_responses() {
    let registry = registry();
    let layer = document("[policies.api]\nquota = '10/min'")
        .layer(&registry)
        .expect("a layer");
    let text = "enabled = false\nheaders = 'none'\non_rejection = 'page'\n[policies.api]\nquota = '10/min'";
    let changes = document(text)
        .reconfigure_layer(&layer, &registry)
        .expect("valid");
    let settings: Vec<_> = changes
        .settings()
        .iter()
        .map(|change| change.setting())
        .collect();
    assert_eq!(settings, ["enabled", "headers", "on_rejection"]);
    assert_eq!(layer.document(), document(text));
}

#[test]
fn invalid_documents_change_nothing() {
    let registry = registry();
    let limiter = document("[policies.api]\nquota = '10/min'")
        .limiter(&registry)
        .expect("a limiter");
    let before = limiter.document();
    for text in [
        "[policies.api]\nquota = '0/min'",
        "[policies.api]\nquota = '1/min'\nkey = 'code'",
    ] {
        document(text)
            .reconfigure(&limiter, &registry)
            .expect_err("a mistake");
        assert_eq!(limiter.document(), before);
    }
}

#[test]
fn another_store_is_a_mistake_that_is_found_without_opening_it() {
    let limiter = document(ON_REDIS)
        .limiter(&Registry::new())
        .expect("a limiter");
    let same = document(ON_REDIS).reconfigure(&limiter, &Registry::new());
    assert!(same.expect("the same store").is_empty());
    let edits = [
        ("user:s3cr3t", "user:0ther", "url"),
        ("/2\"", "/3\"", "url"),
        ("50ms", "60ms", "timeout"),
        ("500", "600", "rejection_cache"),
        ("timeout", "prefix = \"tg2:\"\ntimeout", "prefix"),
    ];
    for (from, to, setting) in edits {
        let error = document(&ON_REDIS.replacen(from, to, 1))
            .reconfigure(&limiter, &Registry::new())
            .expect_err(to);
        assert_eq!(error.mistakes()[0].path(), "store", "{error}");
        assert_eq!(
            error.mistakes()[0].found(),
            format!("another store: other {setting}")
        );
    }
    let without =
        document("[policies.api]\nquota = '10/min'").reconfigure(&limiter, &Registry::new());
    assert_eq!(
        without.expect_err("no store").mistakes()[0].found(),
        "no store"
    );
    let in_process = document("[policies.api]\nquota = '10/min'")
        .limiter(&Registry::new())
        .expect("a limiter");
    let error = document(ON_REDIS)
        .reconfigure(&in_process, &Registry::new())
        .expect_err("a store");
    assert_eq!(error.mistakes()[0].path(), "store");
}

#[test]
fn a_store_of_the_applications_own_stays_without_a_store_in_the_document() {
    let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let policy = tollgate::Policy::new("api", "10/min".parse().expect("a quota"));
    let limiter = Limiter::builder()
        .store(store)
        .policy(policy)
        .build()
        .expect("a limiter");
    let document = document("[policies.api]\nquota = '20/min'");
    let changes = document
        .reconfigure(&limiter, &Registry::new())
        .expect("the same store");
    assert!(!changes.is_empty());
}

#[test]
fn memory_stands_for_counts_in_process() {
    let text = "store.url = '${NO_SUCH_URL:-memory://}'\n[policies.api]\nquota = '10/min'";
    let limiter = document(text).limiter(&Registry::new()).expect("a limiter");
    assert_eq!(limiter.document().store, None);
    assert!(
        document(text)
            .reconfigure(&limiter, &Registry::new())
            .expect("the same")
            .is_empty()
    );
}
