//! Requests that have several keys for a policy, of which the application may read another than the limiter.

use std::borrow::Cow;

use tollgate::extract::Extracted;

use crate::http::{extractors::*, support::*};

/// A request from an address, with these fields.
fn request<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Request<Body> {
    let peer = PeerAddr(address("192.0.2.1:80"));
    let request = Request::get("/").extension(peer);
    let fields = fields.into_iter();
    empty(fields.fold(request, |all, (name, value)| all.header(name, value)))
}

/// The API key twice, in both orders, and a credential of another kind.
fn sent_twice() -> [Request<Body>; 2] {
    let other = ("authorization", "Bearer made-up");
    let [first, second] = ["acme", "made-up"].map(|value| ("x-api-key", value));
    [[first, second, other], [other, second, first]].map(request)
}

async fn is_rejected_in_any_case(
    extractor: impl KeyExtractor,
    requests: impl IntoIterator<Item = Request<Body>>,
) {
    let extractor: Arc<dyn KeyExtractor> = Arc::new(extractor);
    for request in requests {
        let (mut parts, _) = request.into_parts();
        parts.extensions.insert(PeerAddr(address("192.0.2.1:80")));
        for missing in [MissingKey::Skip, MissingKey::Reject, MissingKey::Shared] {
            let policy = policy().key(extractor.clone()).missing_key(missing);
            let app = hello(&RateLimitLayer::builder().policy(policy).built());
            let request = Request::from_parts(parts.clone(), Body::empty());
            let status = send(&app, request).await.status;
            assert_eq!(status, 400, "{extractor:?} {missing:?} {parts:?}");
        }
    }
}

#[tokio::test]
async fn a_credential_that_is_sent_twice_is_rejected_by_every_combination() {
    let (api_key, peer) = (|| extract::header("x-api-key"), extract::peer);
    let either = api_key().or_else(extract::bearer());
    for combination in [
        arc(api_key()),
        arc(api_key().or_else(peer())),
        arc(api_key().or_same(extract::bearer())),
        arc(either.or_else(extract::client_ip())),
        arc((extract::path(), api_key())),
        // A tuple is ambiguous also if another part of it is absent.
        arc((extract::header("x-tenant"), api_key()).or_else(peer())),
    ] {
        is_rejected_in_any_case(combination, sent_twice()).await;
    }
    let host = || extract::host().or_else(peer());
    let target = |header| empty(Request::get("http://a.example/").header("host", header));
    is_rejected_in_any_case(host(), ["b.example", "u@a.example"].map(target)).await;
    let query = || extract::query("q").or_else(peer());
    let targets = ["/?q=a&q=b", "/?q=a&x=y&%71=b", "/?q=&q=a", "/?q=a&q"];
    is_rejected_in_any_case(query(), targets.map(to)).await;
    #[rustfmt::skip]
    let rows = [
        (arc(extract::header("x-tenant")), "x-tenant", &["a", "b"][..]),
        (arc(extract::header("x-tenant")), "x-tenant", &["", "a"]),
        (arc(extract::cookie("c").or_else(peer())), "cookie", &["c=a; c=b"]),
        (arc(extract::cookie("c").or_else(peer())), "cookie", &["c=a; x=y; c=b"]),
        (arc(extract::cookie("c").or_else(peer())), "cookie", &["c=; c=a"]),
        (arc(extract::cookie("c").or_else(peer())), "cookie", &["c=a", "c=b"]),
        (arc(extract::bearer().or_else(peer())), "authorization", &["Bearer a", "Bearer b"]),
        (arc(extract::bearer().or_else(peer())), "authorization", &["Basic a", "Bearer b"]),
        (arc(extract::bearer().or_else(peer())), "authorization", &["Bearer acme 1"]),
        (arc(extract::bearer().or_else(peer())), "authorization", &["Bearer\tacme\t2"]),
        (arc(host()), "host", &["a.example", "b.example"]),
    ];
    for (extractor, header, values) in rows {
        is_rejected_in_any_case(extractor, [lines(header, values)]).await;
    }
    // HTTP/2 sends cookies in several lines, and lists are one line's.
    let requests = [(lines("cookie", &["a=1", "c=x", "b=2"]), Key::secret("x"))];
    each_counts_as(extract::cookie("c"), requests).await;
    let list = [("a, b", Key::new("a, b"))];
    each_value_counts_as(extract::header("x-tenant"), "x-tenant", list).await;
}

#[tokio::test]
async fn equal_values_are_one_key() {
    let acme = Key::new("acme");
    let twice = || request([("x-tenant", "acme"), ("x-tenant", " acme")]);
    each_counts_as(extract::header("x-tenant"), [(twice(), acme)]).await;
    let query = extract::query("t").readable();
    each_counts_as(query, [(to("/?t=acme&t=%61cme"), acme)]).await;
    let lang = extract::cookie("lang").readable();
    let cookies = ["lang=acme; lang=acme", "lang=\"acme\"; %6cang=%61cme"];
    each_value_counts_as(lang, "cookie", cookies.map(|line| (line, acme))).await;
    let hosts = |target: &str| {
        let request = Request::get(format!("http://{target}/"));
        empty(request.header("host", "Acme").header("host", "acme.:80"))
    };
    let hosts = ["acme", "acme:80", "ACME."].map(hosts);
    each_counts_as(extract::host(), hosts.map(|request| (request, acme))).await;
}

#[tokio::test]
async fn spaces_around_a_header_are_no_part_of_its_key() {
    let values = ["acme", "acme ", "acme\t", " acme", "\t acme \t"];
    let values = values.map(|value| (value, Key::new("acme")));
    each_value_counts_as(extract::header("x-tenant"), "x-tenant", values).await;
    has_no_key(extract::header("x-tenant"), with("x-tenant", " \t")).await;
}

#[tokio::test]
async fn binary_metadata_is_decoded() {
    let tenant = || extract::header("x-tenant-bin");
    let acme = Key::new("acme");
    let values = "YWNtZQ==|YWNtZQ| YWNtZQ|YWNtZQ,YWNtZQ==|YWNtZQ , YWNtZQ";
    for value in values.split('|') {
        each_value_counts_as(tenant(), "x-tenant-bin", [(value, acme)]).await;
    }
    let ambiguous = ["YWNtZQ,b3RoZXI", "acme!", "YWNtZR", "YWNtZQ,"];
    let requests = ambiguous.map(|value| with("x-tenant-bin", value));
    is_rejected_in_any_case(tenant().or_else(extract::path()), requests).await;
    assert_eq!(tenant().key_from_text(&["YWNtZQ=="]), Some(acme));
    assert_eq!(tenant().key_from_text(&["acme!"]), None);
}

#[tokio::test]
async fn a_cookie_may_be_the_first_or_the_last_of_several() {
    let session = || extract::cookie("session").readable();
    let [a, b] = ["a", "b"].map(Key::new);
    let lines = "session=a; lang=it; session=b|%73ession=%61; session=\"b\"";
    for line in lines.split('|') {
        each_value_counts_as(session().first(), "cookie", [(line, a)]).await;
        each_value_counts_as(session().last(), "cookie", [(line, b)]).await;
    }
    // Some frameworks skip the second.
    for line in ["session=a; session=%ff", "session=a; session=caf\u{e9}"] {
        is_rejected_in_any_case(session().first(), [with("cookie", line)]).await;
        is_rejected_in_any_case(session().last(), [with("cookie", line)]).await;
    }
    let text = session().last().config_text().map(Cow::into_owned);
    assert_eq!(text.as_deref(), Some("cookie:session readable last"));
}

#[tokio::test]
async fn cookies_are_percent_decoded() {
    let session = || extract::cookie("session").readable();
    let [plain, encoded] = ["session=8f3a", "%73ession=%38f3a"];
    let both = format!("{plain}; {encoded}");
    let values = [plain, "session=%38f3a", "%73ession=8f3a", &both];
    let values = values.map(|line| (line, Key::new("8f3a")));
    each_value_counts_as(session(), "cookie", values).await;
    let several = with("cookie", "session=a; %73ession=b");
    is_rejected_in_any_case(session().or_else(extract::path()), [several]).await;
    // Which of two an application reads is unknown if it may ignore a line.
    let both = lines("cookie", &[&b"session=a"[..], b"session=b; x=\xff"]);
    is_rejected_in_any_case(session().last(), [both]).await;
    assert_eq!(session().key_from_text(&["%38f3a"]), Some(Key::new("8f3a")));
}

#[tokio::test]
async fn a_list_of_keys_rejects_a_request_with_several_keys() {
    let by_key = || policy().key(extract::header("x-tenant"));
    for deny in [true, false] {
        let list = KeyList::new("p", ["1", "acme"].map(Key::new));
        let builder = Limiter::builder().policy(by_key().missing_key(MissingKey::Skip));
        let builder = match deny {
            true => builder.deny(list),
            false => builder.allow(list),
        };
        let limiter = builder.built();
        let app = hello(&RateLimitLayer::new(limiter.clone()));
        let once = send(&app, with("x-tenant", "acme")).await;
        assert_eq!(once.status, if deny { 403 } else { 200 });
        let twice = request([("x-tenant", "acme"), ("x-tenant", "made-up")]);
        let (head, body) = twice.into_parts();
        let explanation = limiter.explain(&head).await.expect("no store");
        let response = send(&app, Request::from_parts(head, body)).await;
        assert_eq!(response.status, 400);
        let detail = "The request lacks the header x-tenant (with one valid value).";
        assert_eq!(response.detail(), detail);
        assert!(!explanation.would_admit() && explanation.list().is_none());
        let lacks_key = matches!(explanation.kind(), DecisionKind::MissingKey { .. });
        assert!(lacks_key, "{explanation:?}");
    }
}

#[tokio::test]
async fn a_list_rejects_a_request_with_several_keys_of_a_policy_that_does_not_apply() {
    let skipped = policy().key(extract::header("x-tenant")).skip_path("/");
    let limiter = Limiter::builder().policy(skipped);
    let limiter = limiter.deny(KeyList::new("p", [Key::new("acme")])).built();
    let twice = request([("x-tenant", "acme"), ("x-tenant", "made-up")]);
    let (head, body) = twice.into_parts();
    let explanation = limiter.explain(&head).await.expect("no store");
    let is_rejected = matches!(explanation.kind(), DecisionKind::MissingKey { .. });
    assert!(is_rejected, "{explanation:?}");
    let app = hello(&RateLimitLayer::new(limiter));
    let response = send(&app, Request::from_parts(head, body)).await;
    assert_eq!(response.status, 400);
}

#[tokio::test]
async fn a_rejection_names_the_one_of_several_fields_that_is_ambiguous() {
    let by = extract::header("x-tenant").or_else(extract::header("x-api-key"));
    let app = hello(&counted_by(by.or_else(extract::bearer())));
    let [twice, _] = sent_twice();
    let one = "The request lacks the header x-api-key (with one valid value).";
    assert_eq!(send(&app, twice).await.detail(), one);
    let any = "The request lacks the header x-tenant or the header x-api-key or a bearer token (Authorization header).";
    assert_eq!(send(&app, to("/")).await.detail(), any);
}

#[tokio::test]
async fn a_shadow_policy_does_not_count_a_request_with_several_keys() {
    let live = policy().key(extract::peer());
    let shadow = Policy::new("next", live.quota()).key(extract::header("x-api-key"));
    let layer = RateLimitLayer::builder().policy(live);
    let layer = layer.policy(shadow.shadow()).built();
    let [twice, _] = sent_twice();
    assert_eq!(send(&hello(&layer), twice).await.status, 200);
    assert_eq!(count(&layer, Key::ip([192, 0, 2, 1].into())).await, 1);
}

#[tokio::test]
async fn several_callers_are_recorded_as_none() {
    let policy = policy().key(extract::path()).strategy(ListWindow);
    let policy = policy.caller(extract::header("x-user"));
    let layer = RateLimitLayer::builder().policy(policy).built();
    let app = hello(&layer);
    send(&app, with("x-user", "alice")).await;
    send(&app, request([("x-user", "bob"), ("x-user", "carol")])).await;
    let path = Key::new("/");
    let policy = layer.limiter().policy("p").expect("p");
    let callers = policy.callers(path).await.expect("callers");
    assert_eq!(callers, [Key::new("alice"), path]);
}

#[tokio::test]
async fn a_policy_that_is_named_twice_makes_a_call_invalid() {
    let limiter = Limiter::builder().policy(policy()).built();
    let rejected = limiter.admit([("p", "alice"), ("p", "bob")]).await;
    let rejected = rejected.expect_err("invalid");
    let kind = rejected.decision().kind();
    assert!(
        matches!(kind, DecisionKind::Invalid(CallError::DuplicatePolicy { policy, .. }) if &**policy == "p")
    );
    let expected = "policy \"p\" is named twice; expected one key for each policy, or entries that set one quota for each key";
    assert_eq!(rejected.to_string(), expected);
    let seen = limiter.peek([("p", "alice"), ("p", "bob")]).await;
    assert_eq!(seen.expect_err("invalid").to_string(), expected);
    assert_eq!(used(&limiter, "p", Key::new("alice")).await, 0);
}

/// Counts how often it is asked.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl KeyExtractor for Counted {
    fn extract(&self, _parts: &Parts) -> Extracted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Key::new("counted").into()
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("counted".into())
    }
}

#[tokio::test]
async fn extractors_of_the_same_text_are_asked_once_for_a_request() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = || Counted(asked.clone());
    let quota = policy().quota();
    let limiter = Limiter::builder().deny(KeyList::new("0", []));
    let mut limiter = limiter.allow(KeyList::new("1", []));
    for name in 0..10 {
        let policy = Policy::new(name.to_string(), quota).key(counted());
        limiter = limiter.policy(policy.strategy(ListWindow).caller(counted()));
    }
    let layer = RateLimitLayer::new(limiter.built());
    let app = hello(&layer);
    for requests in 1..=3 {
        assert_eq!(send(&app, to("/")).await.status, 200);
        assert_eq!(asked.load(Ordering::Relaxed), requests);
    }
    assert_eq!(used(layer.limiter(), "7", Key::new("counted")).await, 3);
}
