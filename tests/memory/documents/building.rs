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
connections = 65
circuit_breaker_threshold = 0
rejection_cache = { staleness = "2h" }
tls = { client_key = { file = "missing.pem" } }

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

#[test]
fn fields_of_named_policies_need_names_of_policies_that_exist_and_a_format_that_has_them() {
    let one_of = r#"expected one of the policies ["api", "tokens"]"#;
    #[rustfmt::skip]
    let rows = [
        ("{ format = 'openai', requests = 'rpm', tokens = 'tpm' }", format!(
            "headers.requests: found \"rpm\"; {one_of}\nheaders.tokens: found \"tpm\"; {one_of}"
        )),
        ("{ format = 'openai', requests = 'api', input_tokens = 'tokens' }", "headers.input_tokens: found the policy \"tokens\", \
            for which the format has no fields; expected the format anthropic".to_owned()),
        ("{ format = 'draft', tokens = 'tokens' }", "headers.tokens: found the policy \"tokens\", for which the format has \
            no fields; expected the format openai or anthropic".to_owned()),
        ("'anthropic'", "headers: found fields of named policies without a name; expected the name of a policy, such as \
            requests = \"api\" in a table with format".to_owned()),
    ];
    let policies = "[policies.api]\nquota = '9/min'\n[policies.tokens]\nquota = '9/min'";
    for (headers, expected) in rows {
        let text = format!("headers = {headers}\n{policies}");
        let error = document(&text).layer(&registry()).expect_err(headers);
        let found: Vec<_> = error.mistakes().iter().map(ToString::to_string).collect();
        assert_eq!(found.join("\n"), expected, "{headers}");
    }
}

/// A response of a layer's service, which responds with an empty body to what is admitted.
async fn respond(
    layer: &RateLimitLayer,
    request: Request<Body>,
) -> (http::response::Parts, String) {
    let empty = async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()));
    let Ok(response) = layer.layer(service_fn(empty)).oneshot(request).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    (head, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn a_layer_rejects_as_the_provider_that_its_document_names() {
    let text = r#"
headers = { format = "openai", tokens = "api" }
rejections = "openai"

[policies.api]
quota = "1/day"
key = "global"
"#;
    let layer = document(text).layer(&registry()).expect("a layer");
    let send = async || respond(&layer, Request::new(Body::empty())).await;
    assert_eq!(send().await.0.headers["x-ratelimit-limit-tokens"], "1");
    let (rejected, body) = send().await;
    assert_eq!(rejected.headers["x-should-retry"], "false");
    let end = r#""type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;
    assert!(body.ends_with(end), "{body}");
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
    let send = async |method: &str, path: &str, user: &str, plan: &str| {
        let head = parts(method, path, &[("x-user", user), ("x-plan", plan)]);
        let response = respond(&layer, Request::from_parts(head, Body::empty())).await;
        assert!(!response.0.headers.contains_key("ratelimit"));
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
        assert_eq!(response.0.status, expected, "{path} of {user}");
    }
    let (rejected, body) = send("GET", "/", "alice", "").await;
    // Six minutes, less the time that the requests took.
    let wait = rejected.headers["retry-after"].to_str().expect("text");
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
    let status = limiter.peek_request(&head).await.expect("a status");
    assert!(!status.would_admit());
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

    let error = document("policies.api = { quota = '1/min', key = 'user' }")
        .builder(&Registry::new())
        .expect_err("a key");
    assert_eq!(paths_of(&error), ["policies.api.key"]);
}

#[test]
fn a_setting_that_would_have_no_effect_is_a_mistake() {
    let entries = "found an empty array; expected at least one entry, or none of the field";
    let conditions = "found an empty table; expected at least one of paths, methods and with, or none of the field";
    #[rustfmt::skip]
    let rows = [
        ("only.paths = []", "only.paths", entries),
        ("skip.methods = []", "skip.methods", entries),
        ("only.with = []", "only.with", entries),
        ("only = {}", "only", conditions),
        ("policies.api.only.paths = []", "policies.api.only.paths", entries),
        ("policies.api.skip = {}", "policies.api.skip", conditions),
        ("policies.slots = { quota = '8 concurrent', charge_rejected = true }", "policies.slots.charge_rejected",
            "found charge_rejected for an in-flight limit; expected an in-flight limit without charge_rejected: a rejected \
            request is not in flight"),
    ];
    for (text, path, expected) in rows {
        let error = mistakes_in(&format!("policies.api.quota = '10/min'\n{text}"));
        assert!(error.ends_with(&format!("{path}: {expected}")), "{error}");
    }
}

#[test]
fn a_registry_with_a_malformed_name_is_a_mistake_of_every_document() {
    let registry = Registry::new().cost("a name", |_| 1);
    let built = document("policies.api.quota = '1/s'").limiter(&registry);
    let error = built.expect_err("a name").to_string();
    assert_contains(&error, ["registered under a malformed name"]);
}

#[test]
fn a_key_of_several_parts_is_listed_by_its_texts() {
    let text = r#"
allow = [{ policy = "api", keys = [["acme", "/ocr"]] }]
[policies.api]
quota = "1/h"
key = ["header:x-tenant", "path"]
"#;
    let limiter = document(text).limiter(&Registry::new()).expect("a limiter");
    let (array, one_text) = (
        r#"["header:x-tenant", "path"]"#,
        r#""[header:x-tenant, path]""#,
    );
    let expected = document(&text.replace(array, one_text));
    assert_eq!(limiter.document(), expected);
}

#[test]
fn mistakes_of_reading_and_of_building_are_found_together() {
    let folder = testkit::folder();
    let path = folder.path().join("limits.toml");
    let text = r#"
headrs = "none"
allow = [{ policy = "api", keys = ["alice"] }, { policy = "apii", keys = ["alice"] }]

[store]
url = 5
prefix = "tg"

[policies.api]
quota = "ten"
strategy = "concurrency"
key = "header:x-user"
caller = "usr"

[policies.next]
quota = "0/h"
shadow = true
"#;
    fs::write(&path, text).expect("a file");
    let error = Document::load_with(&path, &registry()).expect_err("mistakes");
    let paths = paths_of(&error);
    let expected = "headrs allow[1].policy store.url store.prefix policies.api.quota policies.api.caller policies.next.quota";
    let expected: Vec<_> = expected.split(' ').collect();
    assert_eq!(paths, expected, "{error}");
    assert_eq!(error.file(), Some(&*path));
}

#[test]
fn a_cost_may_be_as_large_as_the_largest_tier_allows() {
    for quotas in [
        "tier = 'plan'\ntiers = { pro = '1000/min' }",
        "tier_quotas = ['1000/min']",
    ] {
        let build = |cost: &str| {
            let text = format!("[policies.api]\nquota = '100/min'\n{quotas}\ncost = {cost}");
            document(&text).limiter(&registry())
        };
        build("1000").expect("a cost");
        build("[{ path = '/export', cost = 1000 }]").expect("a cost");
        let by_path = "[{ path = '/export', cost = 1001 }]";
        for (cost, path) in [("1001", "cost"), (by_path, "cost[0].cost")] {
            let error = build(cost).expect_err("a cost").to_string();
            let expected = format!("policies.api.{path}: found a cost of 1001");
            assert!(error.contains(&expected), "{error}");
        }
    }
}

#[test]
fn two_headers_of_the_clients_address_are_a_mistake() {
    let text = "client_ip = { trusted_proxies = ['10.0.0.0/8'], forwarded = true, header = 'cf-connecting-ip' }\n\
        policies.api.quota = '1/s'";
    let expected =
        "1:61: client_ip.forwarded: found true together with header; expected one of them";
    assert_eq!(mistakes_in(text), expected);
}

#[test]
fn a_cost_in_quotes_is_a_mistake_that_says_so() {
    for text in ["5", "010", "1_0"] {
        let error = mistakes_in(&format!("[policies.api]\nquota = '10/s'\ncost = '{text}'"));
        let expected = "expected a whole number without quotes, such as 10, or a registered name";
        assert!(error.ends_with(expected), "{error}");
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
}

#[test]
fn a_misspelled_placeholder_and_a_media_type_without_a_slash_are_mistakes() {
    let text = |rejection: &str| format!("rejection = {rejection}\npolicies.api.quota = \"1/s\"");
    let valid =
        r#"{ body = '{"wait": {retry_after}} of {policy} {}', content_type = "application/json" }"#;
    document(&text(valid))
        .layer(&Registry::new())
        .expect("a layer");
    let wrong = r#"{ body = "in {retry-after} s", content_type = "nonsense" }"#;
    let media_type = r#"rejection.content_type: found "nonsense"; expected a media type"#;
    let placeholder = "rejection.body: found the placeholder {retry-after}; expected {retry_after}";
    assert_contains(mistakes_in(&text(wrong)), [media_type, placeholder]);
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
