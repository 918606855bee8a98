//! The handle of a policy: the keys that it builds, and its calls.

use std::{sync::Arc, time::Duration};

use http::{Request, request::Parts};
use tollgate::{
    Key, PeerAddr, Policy, Quota,
    extract::{self, KeyExtractor},
};

use crate::http::{calls::two, support::limiter};

#[tokio::test]
async fn a_policy_handle_builds_the_keys_that_its_policy_extracts() {
    let key = |extractor: Arc<dyn KeyExtractor>, texts: &[&str]| {
        let policy = Policy::new("p", Quota::requests(1).per_hour()).key(extractor);
        let handle = limiter([policy]).policy("p").expect("a policy");
        handle.keys(texts.iter().copied())
    };
    let tenant = || extract::header("x-tenant");
    let secret = || extract::header("x-api-key");
    let [v4, v6] = ["192.0.2.1", "2001:db8::1"].map(|ip| Key::ip(ip.parse().expect("an address")));
    let tuple = Key::tuple([Key::new("acme"), Key::secret("sk_1")]);
    for (extractor, texts, expected) in [
        (
            Arc::new(tenant()) as Arc<dyn KeyExtractor>,
            &["acme"][..],
            Some(Key::new("acme")),
        ),
        (Arc::new(secret()), &["sk_1"], Some(Key::secret("sk_1"))),
        (
            Arc::new(extract::cookie("id")),
            &["c"],
            Some(Key::secret("c")),
        ),
        (Arc::new(extract::bearer()), &["t"], Some(Key::secret("t"))),
        (Arc::new(extract::query("map")), &["m"], Some(Key::new("m"))),
        (Arc::new(extract::peer()), &["192.0.2.1"], Some(v4)),
        (Arc::new(extract::peer()), &["2001:db8::ffff"], Some(v6)),
        (
            Arc::new(extract::client_ip()),
            &["2001:db8::ffff"],
            Some(v6),
        ),
        (Arc::new(extract::peer()), &["no address"], None),
        (Arc::new(extract::global()), &[], Some(Key::global())),
        (
            Arc::new((tenant(), secret())),
            &["acme", "sk_1"],
            Some(tuple),
        ),
        (Arc::new((tenant(), secret())), &["acme"], None),
        (
            Arc::new(secret().or_else(extract::peer())),
            &["1", "sk_1"],
            Some(Key::tuple([Key::new("1"), Key::secret("sk_1")])),
        ),
        (
            Arc::new(secret().or_else(extract::peer())),
            &["2", "192.0.2.1"],
            Some(Key::tuple([Key::new("2"), v4])),
        ),
        (Arc::new(extract::from_fn(|_| None)), &["alice"], None),
    ] {
        let text = format!("{extractor:?} {texts:?}");
        assert_eq!(key(extractor, texts), expected, "{text}");
    }
}

/// The same text, in a request and by hand.
#[test]
fn a_policy_handle_builds_the_key_of_a_request_with_the_same_text() {
    let with = |uri: &str, name: &'static str, value: &str| {
        let request = Request::get(uri).header(name, value);
        request.body(()).expect("a request").into_parts().0
    };
    let from = |address: &str| {
        let mut parts = with("/", "x-any", "thing");
        let peer = format!("{address}:1").parse().expect("an address");
        parts.extensions.insert(PeerAddr(peer));
        parts
    };
    let token = || with("/", "authorization", "Bearer  sk_1 ");
    let host = |host: &str| with("/", "host", host);
    let cases: Vec<(Arc<dyn KeyExtractor>, Parts, &str)> = vec![
        (
            Arc::new(extract::header("x-tenant")),
            with("/", "x-tenant", "acme"),
            "acme",
        ),
        (
            Arc::new(extract::header("x-api-key")),
            with("/", "x-api-key", "sk_1"),
            "sk_1",
        ),
        (Arc::new(extract::bearer()), token(), " sk_1 "),
        (
            Arc::new(extract::bearer().hash_key([7; 32])),
            token(),
            "sk_1",
        ),
        (
            Arc::new(extract::cookie("id")),
            with("/", "cookie", "a=b; id= 1 ;c=d"),
            " 1 ",
        ),
        (
            Arc::new(extract::query("q")),
            with("/?q=a+b%C3%A9", "x-any", "thing"),
            "a bé",
        ),
        (
            Arc::new(extract::host()),
            host("Example.COM"),
            "Example.COM",
        ),
        (
            Arc::new(extract::host()),
            host("example.com:8080"),
            "example.com:8080",
        ),
        (
            Arc::new(extract::host()),
            host("example.com.:80"),
            "example.com.:80",
        ),
        (
            Arc::new(extract::host()),
            host("[2001:DB8::1]:80"),
            "[2001:DB8::1]:80",
        ),
        (
            Arc::new(extract::path()),
            with("/a/b", "x-any", "thing"),
            "/a/b",
        ),
        (
            Arc::new(extract::method()),
            with("/", "x-any", "thing"),
            "GET",
        ),
        (
            Arc::new(extract::grpc_service()),
            with("/a.B/C", "x-any", "thing"),
            "a.B",
        ),
        (
            Arc::new(extract::grpc_method()),
            with("/a.B/C", "x-any", "thing"),
            "a.B/C",
        ),
        (
            Arc::new(extract::peer()),
            from("[2001:db8::1]"),
            "2001:db8::2",
        ),
        (
            Arc::new(extract::peer().ipv4_prefix(24)),
            from("192.0.2.1"),
            "192.0.2.9",
        ),
        (
            Arc::new(extract::client_ip().ipv6_prefix(48)),
            from("[2001:db8::1]"),
            "2001:db8:0:1::1",
        ),
    ];
    for (extractor, parts, text) in cases {
        let name = format!("{extractor:?} {text:?}");
        let found = extractor.key(&parts);
        assert!(found.is_some(), "{name}");
        let policy = Policy::new("p", Quota::requests(1).per_hour()).key(extractor);
        let policy = limiter([policy]).policy("p").expect("a policy");
        assert_eq!(policy.key(text), found, "{name}");
        let none = policy.key("").or(policy.keys([text, text]));
        assert_eq!(none, None, "{name}");
    }
    // No request has such texts there.
    let none = |extractor: Arc<dyn KeyExtractor>, text| extractor.key_from_text(&[text]);
    assert_eq!(none(Arc::new(extract::host()), "a@b"), None);
    assert_eq!(none(Arc::new(extract::grpc_service()), "a.B/C"), None);
    assert_eq!(none(Arc::new(extract::grpc_method()), "a.B"), None);
}

#[tokio::test]
async fn a_policy_handle_operates_on_its_policy_only() {
    let limiter = two();
    let [account, abuse] = ["account", "abuse"].map(|name| limiter.policy(name).expect(name));
    let alice = Key::new("alice");
    let charged = account.charge(alice, 4).await.expect("a response");
    assert_eq!(charged.policies().len(), 1);
    let left = async || {
        let seen = limiter.peek(alice).await.expect("a response");
        ["address", "account"].map(|name| seen.policy(name).expect(name).remaining())
    };
    assert_eq!(left().await, [2, 1]);
    let credited = account.credit(alice, 2).await.expect("a response");
    assert_eq!(
        credited
            .status()
            .policy("account")
            .expect("a policy")
            .remaining(),
        3
    );
    assert_eq!(left().await, [2, 3]);
    // No more than there are.
    account.credit(alice, u64::MAX).await.expect("a response");
    assert_eq!(left().await, [2, 5]);
    account.charge(alice, 5).await.expect("a response");
    let stood = account.reset(alice).await.expect("a response");
    assert_eq!(stood.policy("account").expect("a policy").remaining(), 0);
    assert_eq!(left().await, [2, 5]);
    abuse
        .block(alice, Duration::from_secs(60))
        .await
        .expect("a ban");
    assert!(!limiter.check(alice).await.is_admitted());
    abuse.unblock(alice).await.expect("a response");
    assert!(limiter.check(alice).await.is_admitted());
    assert!(account.block(alice, Duration::from_secs(60)).await.is_err());
}
