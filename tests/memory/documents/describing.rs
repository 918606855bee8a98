//! The documents of what is in force.

use crate::documents::support::*;

#[test]
fn a_layers_document_says_what_its_own_document_said() {
    let text = r#"
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
connections = 4
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
    let document = document(text);
    let layer = document.layer(&registry()).expect("a layer");
    let written = layer.document().to_text(Format::Toml);
    assert_eq!(written, document.to_text(Format::Toml));
    let shown = format!("{:?}", layer.limiter().policies());
    #[rustfmt::skip]
    assert_contains(shown, [
        "cost: [{ method = POST, path = /upload/*, cost = 10 }, { path = /, cost = 0 }], charge: { refund_unless = success }",
        "skip: { methods = [GET] }, only: { with = [paid] }",
        "on_store_error: { local_fallback = { processes = 4 } }",
    ]);
    let again = layer.document().layer(&registry()).expect("a layer");
    assert_eq!(again.document(), layer.document());
    // What it says is what is in force.
    for same in [&document, &layer.document()] {
        let changes = same.reconfigure_layer(&layer, &registry());
        assert!(changes.expect("the same").is_empty());
    }
}

#[test]
fn what_has_no_name_is_code_and_cannot_be_loaded() {
    let keys = KeyList::new("api", [Key::secret("s3cr3t"), Key::new("bob")]);
    let store = RedisStore::open("redis://user:s3cr3t@127.0.0.1:1").expect("a store");
    let policy = Policy::new("api", quota("10/min")).strategy(SlidingLog);
    let policy = policy.key(extract::from_fn(|_| None)).cost_with(|_| 1);
    let limiter = Limiter::builder()
        .store(store)
        .policy(policy.skip_with(|_| false))
        .allow(keys)
        .deny(AddressList::new(["192.0.2.1"]).expect("a list"))
        .built();
    let layer = RateLimitLayer::new(limiter);
    let layer = layer.on_rejection(|_, _| http::Response::new(String::new()));
    let text = layer.document().to_text(Format::Toml).expect("a text");
    let expected = r#"on_rejection = "code"

[[deny]]
addresses = ["192.0.2.1/32"]

[[allow]]
policy = "api"
keys = ["hash:o-gRed7DFDig3M1qYlN6", "bob"]

[store]
url = "redis://***@127.0.0.1:1"

[policies.api]
quota = "10/min"
strategy = "sliding_log"
key = "code"
cost = "code"

[policies.api.skip]
with = ["code"]
"#;
    assert_eq!(text, expected);
    let error = document(&text).layer(&Registry::new()).expect_err("code");
    let expected = "on_rejection allow[0].keys[1] store.url policies.api.key policies.api.cost policies.api.skip.with[0]";
    assert_eq!(paths_of(&error).join(" "), expected);
    assert_eq!(
        error.mistakes()[4].to_string(),
        "policies.api.cost: found the cost \"code\", which stands for code of the application without a name; \
         expected what can be loaded: register the code in the `Registry`, and name it here",
    );
}
