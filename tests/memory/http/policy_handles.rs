//! The handle of a policy: the keys that it builds, and its calls.

use crate::http::{calls::two, support::*};

#[tokio::test]
async fn a_policy_handle_builds_the_keys_that_its_policy_extracts() {
    let key = |extractor: Arc<dyn KeyExtractor>, texts: &[&str]| {
        let policy = Policy::new("p", quota("1/h")).key(extractor);
        let handle = limiter([policy]).policy("p").expect("a policy");
        handle.keys(texts.iter().copied())
    };
    let tenant = || extract::header("x-tenant");
    let secret = || extract::header("x-api-key");
    let [v4, v6] = ["192.0.2.1", "2001:db8::1"].map(|ip| Key::ip(ip.parse().expect("an address")));
    let tuple = Key::tuple([Key::new("acme"), Key::secret("sk_1")]);
    let choice = || secret().or_else(extract::peer());
    let second = Key::tuple([Key::new("2"), v4]);
    let first = Key::tuple([Key::new("1"), Key::secret("sk_1")]);
    for (extractor, texts, expected) in [
        (arc(tenant()), &["acme"][..], Some(Key::new("acme"))),
        (arc(secret()), &["sk_1"], Some(Key::secret("sk_1"))),
        (arc(extract::cookie("id")), &["c"], Some(Key::secret("c"))),
        (arc(extract::query("map")), &["m"], Some(Key::new("m"))),
        (arc(extract::peer()), &["192.0.2.1"], Some(v4)),
        (arc(extract::client_ip()), &["2001:db8::ffff"], Some(v6)),
        (arc(extract::peer()), &["no address"], None),
        (arc(extract::global()), &[], Some(Key::global())),
        (arc((tenant(), secret())), &["acme", "sk_1"], Some(tuple)),
        (arc((tenant(), secret())), &["acme"], None),
        (arc(choice()), &["1", "sk_1"], Some(first)),
        (arc(choice()), &["2", "192.0.2.1"], Some(second)),
        (arc(extract::from_fn(|_| None)), &["alice"], None),
    ] {
        let text = format!("{extractor:?} {texts:?}");
        assert_eq!(key(extractor, texts), expected, "{text}");
    }
}

/// The same text, in a request and by hand.
#[test]
fn a_policy_handle_builds_the_key_of_a_request_with_the_same_text() {
    let with = |name: &str, value: &str| head(Request::get("/").header(name, value));
    let at = |uri: &str| head(Request::get(uri));
    let from = |peer: &str| {
        let peer: SocketAddr = format!("{peer}:1").parse().expect("an address");
        head(Request::get("/").extension(PeerAddr(peer)))
    };
    let token = || with("authorization", "Bearer  sk_1 ");
    let of_hash = arc(extract::bearer().hash_key([7; 32]));
    let cookies = with("cookie", "a=b; id= 1 ;c=d");
    let network = arc(extract::peer().ipv4_prefix(24));
    let large = arc(extract::client_ip().ipv6_prefix(48));
    let [header, secret] = ["x-tenant", "x-api-key"].map(|name| arc(extract::header(name)));
    let mut cases = vec![
        (header, with("x-tenant", "acme"), "acme"),
        (secret, with("x-api-key", "sk_1"), "sk_1"),
        (arc(extract::bearer()), token(), " sk_1 "),
        (of_hash, token(), "sk_1"),
        (arc(extract::cookie("id")), cookies, " 1 "),
        (arc(extract::query("q")), at("/?q=a+b%C3%A9"), "a bé"),
        (arc(extract::path()), at("/a/b"), "/a/b"),
        (arc(extract::method()), at("/"), "GET"),
        (arc(extract::grpc_service()), at("/a.B/C"), "a.B"),
        (arc(extract::grpc_method()), at("/a.B/C"), "a.B/C"),
        (arc(extract::peer()), from("[2001:db8::1]"), "2001:db8::2"),
        (network, from("192.0.2.1"), "192.0.2.9"),
        (large, from("[2001:db8::1]"), "2001:db8:0:1::1"),
    ];
    let hosts = "Example.COM example.com:8080 example.com.:80 [2001:DB8::1]:80";
    for host in hosts.split(' ') {
        cases.push((arc(extract::host()), with("host", host), host));
    }
    for (extractor, parts, text) in cases {
        let name = format!("{extractor:?} {text:?}");
        let found = extractor.extract(&parts).key();
        assert!(found.is_some(), "{name}");
        let policy = Policy::new("p", quota("1/h")).key(extractor);
        let policy = limiter([policy]).policy("p").expect("a policy");
        assert_eq!(policy.key(text), found, "{name}");
        let none = policy.key("").or(policy.keys([text, text]));
        assert_eq!(none, None, "{name}");
    }
    // No request has such texts there.
    let none = |extractor: Arc<dyn KeyExtractor>, text| extractor.key_from_text(&[text]);
    assert_eq!(none(arc(extract::host()), "a@b"), None);
    assert_eq!(none(arc(extract::grpc_service()), "a.B/C"), None);
    assert_eq!(none(arc(extract::grpc_method()), "a.B"), None);
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
        ["address", "account"].map(|name| seen.left(name))
    };
    assert_eq!(left().await, [2, 1]);
    let credited = account.credit(alice, 2).await.expect("a response");
    let status = credited.status().policy("account").expect("a policy");
    assert_eq!(status.remaining(), 3);
    assert_eq!(left().await, [2, 3]);
    // No more than there are.
    account.credit(alice, u64::MAX).await.expect("a response");
    assert_eq!(left().await, [2, 5]);
    account.charge(alice, 5).await.expect("a response");
    let stood = account.reset(alice).await.expect("a response");
    assert_eq!(stood.left("account"), 0);
    assert_eq!(left().await, [2, 5]);
    let blocked = abuse.block(alice, secs(60));
    blocked.await.expect("a ban");
    assert!(!limiter.check(alice).await.is_admitted());
    abuse.unblock(alice).await.expect("a response");
    assert!(limiter.check(alice).await.is_admitted());
    assert!(account.block(alice, secs(60)).await.is_err());
}
