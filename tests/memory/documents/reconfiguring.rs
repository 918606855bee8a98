//! Documents that are put in force in a running limiter or layer.

use crate::documents::support::*;

/// A document of a limiter on Redis; nothing connects.
const ON_REDIS: &str = r#"
[store]
url = "redis://user:${CARGO_PKG_NAME}@127.0.0.1:1/2"
timeout = "50ms"
rejection_cache = { staleness = "2s", capacity = 500 }

[policies.api]
quota = "10/min"
"#;

/// Every setting that has a form of its own, in a document that can be built.
const EVERY_SETTING: &str = r#"
enabled = false
rejections = "openai"
refund_handler_rejections = true
on_store_error = "reject"
on_misconfiguration = "as_store_error"
on_unknown_address = "reject"
count_preflights = true

[headers]
format = "openai"
jitter = "2s"
requests = "api"
tokens = "users"

[rejection]
body = "Wait {retry_after} s."
content_type = "text/html"

[skip]
paths = ["/health", "/static/*"]
methods = ["OPTIONS"]
with = ["internal"]

[only]
paths = ["/api/*"]

[[deny]]
addresses = ["192.0.2.0/24"]

[[allow]]
policy = "api"
keys = ["alice"]

[store]
url = "redis://127.0.0.1:1/2"
prefix = "api:"
timeout = "50ms"
circuit_breaker_threshold = false
rejection_cache = false

[policies.api]
quota = "100/min burst 20"
strategy = "token_bucket"
key = "header:x-tenant"
missing_key = "shared"
cost = [{ method = "POST", path = "/upload/*", cost = 10 }, { path = "/", cost = 0 }]
charge = { refund_unless = "success" }
charge_dropped = false
tier = "plan"
tiers = { free = "10/min", pro = "1000/min" }
tier_quotas = ["100/min"]
on_store_error = { local_fallback = { processes = 4 } }
lease = { max_units = 64, ttl = "20ms" }

[policies.users]
quota = "7/h"
strategy = "own"
key = "user | same(header:x-api-key, bearer) | client_ip hops 2 ipv6_prefix 56"
caller = "[peer, path]"
cost = "tokens"
charge = { after = "teapot" }

[policies.hand]
quota = "8 concurrent"
by_hand = true
quota_with = "quota"
skip = { methods = ["GET"] }
only = { with = ["paid"] }

[policies.watched]
quota = "1/s"
charge_rejected = true

[policies.locked]
block_list = true

[policies.next]
quota = "1/s"
shadow = true
"#;

const PLAIN: &str = "[policies.api]\nquota = '10/min'";

/// The limiter of a document that names no code.
fn limiter(text: &str) -> Limiter {
    let limiter = document(text).limiter(&Registry::new());
    limiter.unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn a_document_changes_the_policies_of_a_running_limiter() {
    let registry = registry();
    let limiter = limiter("[policies.api]\nquota = '10/day'");
    assert!(limiter.check("alice").times(5).await.is_admitted());
    let next =
        document("[policies.api]\nquota = '20/day'\n[policies.new]\nquota = '5/s'\ncost = 3");
    let changes = next.reconfigure(&limiter, &registry).expect("valid");
    let api = changes.policy("api").expect("a change");
    assert_eq!(api.quota_before(), Some(quota("10/day")));
    assert_eq!(api.quota_after(), Some(quota("20/day")));
    let status = limiter.peek("alice").await.expect("a status");
    assert_eq!(status.left("api"), 10);
    let changes = next.reconfigure(&limiter, &registry).expect("valid");
    assert!(changes.is_empty(), "{changes}");
}

#[test]
fn a_layer_is_reconfigured_with_its_responses() {
    let registry = registry();
    let layer = document(PLAIN).layer(&registry).expect("a layer");
    let text = "enabled = false\nheaders = 'none'\nrejections = 'openai'\non_rejection = 'page'\n[policies.api]\nquota = '10/min'";
    let changes = document(text).reconfigure_layer(&layer, &registry);
    let changes = changes.expect("valid");
    assert!(
        changes
            .settings()
            .eq(["enabled", "headers", "rejections", "on_rejection"])
    );
    let again = document(text).reconfigure_layer(&layer, &registry);
    assert!(again.expect("the same").is_empty());
}

#[test]
fn a_document_that_is_put_in_force_again_changes_nothing() {
    let document = document(EVERY_SETTING);
    let registry = registry();
    let layer = document.layer(&registry).expect("a layer");
    let shown = format!("{:?}", layer.limiter().policies());
    #[rustfmt::skip]
    assert_contains(shown, [
        "quota: 100/min burst 20", "strategy: TokenBucket", "missing_key: Shared", "cost: Rules(", "charge: RefundUnless(", "caller: (Peer",
        "cost: With(", "charge: After(", "quotas: [(\"free\"", "tier_quotas: [", "methods: [GET]", "with: [function]", "processes: 4", "max_units: 64, ttl: 20ms",
        "quota_by_request: Function(", "charge_dropped: false", "charge_rejected: true", "by_hand: true", "block_list: true", "shadow: true",
    ]);
    let changes = document.reconfigure_layer(&layer, &registry);
    let changes = changes.expect("the same");
    assert!(changes.is_empty(), "{changes}");
}

#[test]
fn how_addresses_are_found_is_a_change_of_keys_and_of_lists_of_addresses() {
    let text = |hops: u8| {
        let by_client =
            format!("client_ip.hops = {hops}\ndeny = [{{ addresses = ['192.0.2.1'] }}]");
        format!("{by_client}\n[policies.api]\nquota = '1/h'\nkey = 'client_ip'")
    };
    let limiter = limiter(&text(1));
    let changes = document(&text(2)).reconfigure(&limiter, &Registry::new());
    let changes = changes.expect("valid").to_string();
    assert_contains(&changes, ["deny: altered", "api: altered"]);
}

#[test]
fn invalid_documents_change_nothing() {
    let registry = registry();
    let limiter = limiter(PLAIN);
    for text in [
        "[policies.api]\nquota = '0/min'",
        "[policies.api]\nquota = '1/min'\nkey = 'code'",
    ] {
        let changed = document(text).reconfigure(&limiter, &registry);
        changed.expect_err("a mistake");
        let before = document(PLAIN).reconfigure(&limiter, &registry);
        assert!(before.expect("valid").is_empty());
    }
}

#[test]
fn another_store_is_a_mistake_that_is_found_without_opening_it() {
    let on_redis = limiter(ON_REDIS);
    let reconfigure = |limiter: &Limiter, text: &str| {
        let changed = document(text).reconfigure(limiter, &Registry::new());
        let error = changed.expect_err(text);
        let mistake = &error.mistakes()[0];
        assert_eq!(mistake.path(), "store", "{error}");
        mistake.found().to_owned()
    };
    let same = document(ON_REDIS).reconfigure(&on_redis, &Registry::new());
    assert!(same.expect("the same store").is_empty());
    for (from, to, setting) in [
        ("127.0.0.1:1", "127.0.0.1:2", "url"),
        ("redis:", "rediss:", "url"),
        ("/2\"", "/3\"", "url"),
        ("50ms", "60ms", "timeout"),
        ("500", "600", "rejection_cache"),
        ("timeout", "prefix = \"tg2:\"\ntimeout", "prefix"),
    ] {
        let found = reconfigure(&on_redis, &ON_REDIS.replacen(from, to, 1));
        assert_eq!(found, format!("another store: other {setting}"));
    }
    assert_eq!(reconfigure(&on_redis, PLAIN), "no store");
    reconfigure(&limiter(PLAIN), ON_REDIS);
}

#[test]
fn rotated_credentials_of_the_store_stay_unused_and_the_other_settings_are_put_in_force() {
    let folder = testkit::folder();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).expect("a file");
    };
    let load = |quota: &str, store: &str| {
        let text = format!("[store]\n{store}\n[policies.api]\nquota = '{quota}'\n");
        write("limits.toml", &text);
        Document::load(folder.path().join("limits.toml")).expect("a document")
    };
    let url = "url = { file = 'url' }";
    let sentinel =
        "sentinel = { master = 'm', urls = [{ file = 'url' }], server_url = { file = 'server' } }";
    let cluster = "cluster = [{ file = 'url' }, 'redis://127.0.0.1:7']";
    #[rustfmt::skip]
    let rows = [
        (url, "url", "redis://u:old@h/1", "redis://u:new@h/1", "url"),
        (url, "url", "redis://h/1", "redis://v:new@h:6379/1\n", "url"),
        (cluster, "url", "redis://:old@h", "redis://:new@h", "cluster"),
        (sentinel, "url", "redis://:old@h", "redis://:new@h", "sentinel"),
        (sentinel, "server", "redis://:old@any/3", "redis://:new@any/3", "sentinel"),
    ];
    for (store, file, first, rotated, field) in rows {
        write("url", "redis://h");
        write("server", "redis://any/3");
        write(file, first);
        let limiter = load("10/min", store).limiter(&Registry::new());
        let limiter = limiter.expect("a limiter");
        let reload = || load("20/min", store).reconfigure(&limiter, &Registry::new());
        write(file, rotated);
        let changes = reload().expect(rotated).to_string();
        let expected = format!(
            "store: other credentials in {field}, in force when the process is restarted\n\
             api: altered: quota 10/min -> 20/min"
        );
        assert!(changes.starts_with(&expected), "{changes}");
        assert!(!changes.contains("new"), "{changes}");
        // Until the restart each reload says so.
        assert_eq!(reload().expect("the same").settings().len(), 1);
        write(file, first);
        assert!(reload().expect("the first").is_empty());
    }
}

#[tokio::test]
async fn a_store_in_process_holds_as_many_keys_as_the_document_says() {
    let text = |store: &str| format!("[store]\n{store}\n[policies.api]\nquota = '1/h'");
    let in_process = limiter(&text("url = '${NO_SUCH_URL:-memory://}'\nmax_keys = 2"));
    for (key, is_admitted) in [
        ("a", true),
        ("b", true),
        ("b", false),
        ("c", true),
        ("d", true),
    ] {
        assert_eq!(
            in_process.check(key).await.is_admitted(),
            is_admitted,
            "{key}"
        );
    }
    // Two were evicted.
    let mut admitted = 0;
    for key in ["a", "b", "c", "d"] {
        admitted += u64::from(in_process.peek(key).await.expect("a status").would_admit());
    }
    assert_eq!(admitted, 2);
    let same = document(&text("max_keys = 2")).reconfigure(&in_process, &Registry::new());
    assert!(same.expect("the same store").is_empty());
    for other in ["max_keys = 3", "url = 'memory://'"] {
        let error = document(&text(other)).reconfigure(&in_process, &Registry::new());
        assert_contains(error.expect_err(other), ["another store: other max_keys;"]);
    }
}
