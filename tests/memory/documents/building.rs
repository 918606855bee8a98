//! From a document to a limiter or a layer, and the mistakes that are found then.

use crate::documents::support::*;

#[test]
fn all_mistakes_of_a_limiter_are_found_at_once_each_at_its_path() {
    let text = r#"
rejection = { body = "no", content_type = "a\nb" }
skip = { paths = ["health"], methods = ["get"], with = ["interna"] }
deny = [{ addresses = ["192.0.2.1", "192.0.2.300"] }, { addresses = { file = "missing.txt" } }, {}]
allow = [{ policy = "apii", keys = ["alice"] }, { policy = "tuple", keys = ["s3cr3t", ["a", "b"], "hash:xyz"] }]
on_store_error = { local_fallback = { processes = 0 } }

[client_ip]
trusted_proxies = ["10.0.0.0/8", "ten"]
hops = 65

[bearer]
hash_key = "${NO_SUCH_HASH_KEY}"

[store]
url = "redi://localhost"
prefix = "tg"
timeout = "2day"
circuit_breaker_threshold = 0
rejection_cache = { staleness = "2h" }
tls = { client_key = "s3cr3t" }

[policies.api]
quota = "0/min"
key = "header:x y"
cost = [{ method = "post", path = "upload", cost = 5 }]
charge = { after = "succes" }

[policies.fixed]
quota = "10/min burst 20"
strategy = "fixed_window"
caller = "usr"
tier = "plan"
quota_with = "quota"
cost = 100

[policies.tiers]
quota = "10/min"
strategy = "fixed_window"
charge = { after = "failure" }
charge_rejected = true
tier = "plans"
tiers = { free = "1/h", pro = "1/min" }
tier_quotas = ["20/min"]

[policies.tuple]
quota = "10/min"
key = ["header:a", "header:b"]
strategy = "fixd_window"

["policies"."a \" name"]
quota = "10/min"
"#;
    let error = document(text).layer(&registry()).expect_err("mistakes");
    let expected = include_str!("every_mistake.txt");
    assert_eq!(error.to_string(), expected.trim_end());
}

#[tokio::test]
async fn a_layer_does_what_its_document_says() {
    let text = r#"
headers = "none"
rejection = { body = '{"policy": "{policy}", "wait": {retry_after}}', content_type = "application/json" }
skip = { paths = ["/health"] }
deny = [{ policy = "api", keys = ["mallory"] }]
allow = [{ policy = "api", keys = ["root", "hash:7lEM2SSxGPnYHjFZP0wx"] }]

[policies.other]
quota = "1000/h"
key = "header:x-user"

[policies.api]
quota = "10/h"
key = "header:x-user"
cost = [{ method = "POST", path = "/upload/*", cost = 10 }]
tier = "plan"
tiers = { pro = "100/h" }
"#;
    let layer = document(text).layer(&registry()).expect("a layer");
    let empty = async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()));
    let service = layer.layer(service_fn(empty));
    let send = async |method: &str, path: &str, user: &str, plan: &str| {
        let head = parts(method, path, &[("x-user", user), ("x-plan", plan)]);
        let request = Request::from_parts(head, Body::empty());
        let Ok(response) = service.clone().oneshot(request).await;
        assert!(!response.headers().contains_key("ratelimit"));
        response
    };
    for (method, path, user, plan, expected) in [
        ("POST", "/upload/a", "alice", "", 200),
        ("GET", "/", "alice", "", 429),
        ("GET", "/health", "alice", "", 200),
        ("POST", "/upload/a", "bob", "pro", 200),
        ("POST", "/upload/a", "bob", "pro", 200),
        ("GET", "/", "mallory", "", 403),
        ("POST", "/upload/a", "root", "", 200),
        ("POST", "/upload/a", "root", "", 200),
    ] {
        let response = send(method, path, user, plan).await;
        assert_eq!(response.status(), expected, "{path} of {user}");
    }
    let rejected = send("GET", "/", "alice", "").await;
    // Six minutes, less the time that the requests took.
    let wait = rejected.headers()["retry-after"]
        .to_str()
        .expect("text")
        .to_owned();
    let body = rejected
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert_eq!(body, format!(r#"{{"policy": "api", "wait": {wait}}}"#));
}

#[tokio::test]
async fn bearer_tokens_are_hashed_under_the_documents_key() {
    let folder = testkit::folder();
    let path = folder.path().join("limits.toml");
    let text =
        "bearer.hash_key = { file = 'key' }\n[policies.api]\nquota = '1/h'\nkey = 'bearer'\n";
    fs::write(&path, text).expect("a file");
    let limiter = |key: String| {
        fs::write(folder.path().join("key"), key).expect("a file");
        Document::load(&path)?.limiter(&Registry::new())
    };
    let short = limiter("1f".repeat(31)).expect_err("31 bytes").to_string();
    assert!(short.contains("expected 32 bytes"), "{short}");
    let limiter = limiter("1f".repeat(32)).expect("a limiter");
    let key = Key::secret_with(&[0x1f; 32], "abc");
    assert!(limiter.check(("api", key)).await.is_admitted());
    let head = parts("GET", "/", &[("authorization", "Bearer abc")]);
    let explanation = limiter.explain(&head).await.expect("an explanation");
    assert!(!explanation.would_admit());
}

#[tokio::test]
async fn a_builder_has_all_of_a_document_but_its_store() {
    let text = r#"
deny = [{ policy = "api", keys = ["mallory"] }]

[store]
url = "${A_VARIABLE_THAT_IS_NOT_SET}"

[policies.api]
quota = "1/min"
key = "header:x-user"
"#;
    let clock = ManualClock::default();
    let limiter = document(text)
        .builder(&registry())
        .expect("a builder")
        .store(MemoryStore::builder().clock(clock.clone()).build())
        .built();
    assert!(limiter.check("alice").await.is_admitted());
    assert!(!limiter.check("alice").await.is_admitted());
    assert!(!limiter.check("mallory").await.is_admitted());
    clock.advance(secs(60));
    assert!(limiter.check("alice").await.is_admitted());

    // Its mistakes are found at once: code that no registry has, and a registry with a malformed name.
    let keyed = document("policies.api = { quota = '1/min', key = 'user' }");
    let error = keyed.builder(&Registry::new()).expect_err("a key");
    assert_eq!(paths_of(&error), ["policies.api.key"]);
    let malformed = Registry::new().cost("a name", |_| 1);
    let error = document(text).builder(&malformed).expect_err("a name");
    assert_contains(error, ["registered under a malformed name"]);
}

#[test]
fn a_setting_that_does_not_fit_the_others_is_a_mistake_at_its_path() {
    let api = "[policies.api]\nquota = '10/min'";
    let named = |headers: &str| format!("headers = {headers}\n{api}");
    let tiers =
        |cost| format!("{api}\ntier = 'plan'\ntiers = {{ pro = '1000/min' }}\ncost = {cost}");
    let by_path = |cost| format!("[{{ path = '/export', cost = {cost} }}]");
    let client_ip = "client_ip = { trusted_proxies = ['10.0.0.0/8'], forwarded = true, header = 'cf-connecting-ip' }";
    let placeholder = "rejection.body = 'in {retry-after} s of {}'";
    let slots = "policies.slots = { quota = '8 concurrent', charge_rejected = true }";
    let leased = |settings: &str| format!("{api}\nlease = {{ {settings} }}");
    #[rustfmt::skip]
    let rows = [
        (named("{ format = 'openai', requests = 'rpm' }"), "headers.requests: found \"rpm\"; expected one of the policies [\"api\"]"),
        (named("{ format = 'openai', input_tokens = 'api' }"), "headers.input_tokens: found the policy \"api\""),
        (named("{ format = 'draft', tokens = 'api' }"), "headers.tokens: found the policy \"api\""),
        (named("'anthropic'"), "headers: found fields of named policies without a name"),
        (format!("only.paths = []\n{api}"), "only.paths: found an empty array"),
        (format!("only = {{}}\n{api}"), "only: found an empty table"),
        (format!("{api}\nskip = {{}}"), "policies.api.skip: found an empty table"),
        (format!("{slots}\n{api}"), "policies.slots.charge_rejected: found charge_rejected for an in-flight limit"),
        (format!("{client_ip}\n{api}"), "client_ip.forwarded: found true together with header; expected one of them"),
        (format!("{placeholder}\n{api}"), "rejection.body: found the placeholder {retry-after}; expected {retry_after}"),
        (format!("rejection_headers.Content-Length = '5'\n{api}"), "rejection_headers.Content-Length: found a header \"content-length\""),
        (format!("rejection_headers = {{ X-A = '1', x-a = '2' }}\n{api}"), "rejection_headers.x-a: found the same name in other letters"),
        (format!("rejection_headers.'x a' = '1'\n{api}"), "found a header \"x a\"; expected a field name"),
        (format!("rejection_headers.x-a = \"1\\n\"\n{api}"), "rejection_headers.x-a: found \"1\\n\"; expected visible"),
        (format!("rejection_headers.x-envoy-ratelimited = true\n{api}"), "rejection_headers.x-envoy-ratelimited: found true"),
        (format!("{api}\ncost = '5'"), "expected a whole number without quotes"),
        // A cost may be as large as the largest tier allows.
        (tiers("1001".to_owned()), "policies.api.cost: found a cost of 1001"),
        (tiers(by_path(1001)), "policies.api.cost[0].cost: found a cost of 1001"),
        (leased("max_units = 0, ttl = '1ms'"), "policies.api.lease.max_units: found leases with max_units = 0"),
        (leased("max_units = 2, ttl = 50"), "policies.api.lease.ttl: found 50; expected a duration"),
        (leased("max_units = 2, time = '5ms'"), "policies.api.lease.time: found an unknown field; expected one of max_units, ttl"),
        (leased(""), "policies.api.lease.max_units: found nothing; expected max_units, which is required"),
    ];
    for (text, expected) in rows {
        assert_contains(mistakes_in(&text), [expected]);
    }
    for cost in ["1000".to_owned(), by_path(1000)] {
        let built = document(&tiers(cost)).limiter(&registry());
        built.expect("a cost that a tier allows");
    }
}

#[test]
fn a_long_text_is_shortened_in_a_mistake() {
    let long = "ä".repeat(100_000);
    for field in ["quota", "key", "strategy", "cost", "charge"] {
        let quota = if field == "quota" {
            ""
        } else {
            "quota = '1/s'"
        };
        let error = mistakes_in(&format!("[policies.api]\n{quota}\n{field} = '{long}'"));
        assert!(
            error.len() < 2_000 && error.contains("ää..."),
            "{field}: {error}"
        );
    }
    let error = mistakes_in(&format!("[policies.api]\n'{long}' = 1"));
    assert!(error.len() < 2_000 && error.contains("ää..."), "{error}");
    let variable = "A".repeat(100_000);
    let api = "[policies.api]\nquota = '1/s'";
    let error = mistakes_in(&format!("store.url = '${{{variable}}}'\n{api}"));
    assert!(error.len() < 4_000 && error.contains("AA..."), "{error}");
}

#[test]
fn of_a_url_at_a_path_where_no_secret_is_expected_the_scheme_alone_is_shown() {
    for settings in [
        r#"quota = "1/s", key = "redis://user:hunter2@host""#,
        r#"quota = "redis://user:hunter2@host/?pass=hunter2""#,
        r#"quota = "1/s", cost = "redis://hunter2@host:1""#,
        r#"quota = "1/s", cost = "redis://:hunter2""#,
        r#"quota = "redis://host/?pass=a@hunter2""#,
    ] {
        let document = Document::parse(&format!("policies.api = {{ {settings} }}"), Format::Toml);
        let built = document.and_then(|document| document.layer(&Registry::new()));
        let error = built.expect_err("a mistake");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("redis://***;"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[tokio::test]
async fn a_lease_is_in_force_with_a_ttl_of_50_ms_unless_another_is_set_and_lowers_the_burst() {
    let text = |lease| format!("[policies.api]\nquota = '100/s'\nkey = 'global'\nlease = {lease}");
    for (lease, written, limit) in [
        ("{ max_units = 64 }", "{ max_units = 64, ttl = '50ms' }", 94),
        (
            "{ ttl = '10ms', max_units = 2 }",
            "{ max_units = 2, ttl = '10ms' }",
            98,
        ),
    ] {
        let limiter = document(&text(lease)).limiter(&Registry::new());
        let limiter = limiter.expect("a limiter");
        let changes = document(&text(written)).reconfigure(&limiter, &Registry::new());
        assert!(changes.expect(lease).is_empty(), "{lease}");
        let status = limiter.peek("").await.expect("a status");
        assert_eq!(status.policy("api").expect("api").limit(), limit);
    }
}
