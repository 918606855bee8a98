//! Clients that lists admit or deny, whatever the policies decide.

use crate::http::support::*;
use tollgate::{access::OnUnknownAddress, extract::client_ip};

const LOCAL: &str = "192.0.2.7:1234";
const OTHER: &str = "198.51.100.7:1234";

fn from(peer: &str) -> Request<Body> {
    let peer: SocketAddr = peer.parse().expect(peer);
    empty(Request::get("/").extension(PeerAddr(peer)))
}

fn addresses(entry: &str) -> AddressList {
    AddressList::new([entry]).expect(entry)
}

fn bearer(token: &str) -> Request<Body> {
    let mut request = from(LOCAL);
    let token = format!("Bearer {token}").parse().expect("a value");
    request.headers_mut().insert("authorization", token);
    request
}

#[tokio::test]
async fn a_denied_address_gets_403_and_is_charged_nothing() {
    let list = AddressList::new(["192.0.2.0/24", "2001:db8::/32"]).expect("a list");
    let build = |b: LimiterBuilder| b.policy(shared("p", "2/h")).deny(list.clone());
    for (limiter, _server) in on_each_store(build) {
        let layer = RateLimitLayer::new(limiter.clone());
        let app = hello(&layer);
        for peer in [
            LOCAL,
            LOCAL,
            LOCAL,
            "[2001:db8::1]:1",
            "[::ffff:192.0.2.9]:1",
        ] {
            let response = send(&app, from(peer)).await;
            assert_eq!(response.status, 403, "{peer}");
            assert_eq!(response.json()["status"], 403);
            assert_eq!(response.field("retry-after"), "");
            assert_eq!(response.field("ratelimit"), "");
        }
        assert_eq!(used(&limiter, "p", Key::global()).await, 0);
        assert_eq!(send(&app, from(OTHER)).await.status, 200);

        // Without HTTP.
        let denied: IpAddr = [192, 0, 2, 1].into();
        let decision = limiter.check(Key::global()).address(denied).await;
        let is_denied = matches!(decision.kind(), DecisionKind::DenyListed);
        assert!(is_denied, "{decision:?}");
        assert_eq!(decision.source(), DecisionSource::NotChecked);
        let rejected = decision.into_result().expect_err("a rejection");
        assert_eq!(rejected.to_string(), "the request is on a deny list");
        assert_eq!(rejected.retry_after(), RetryAfter::Never);
        let seen = limiter.peek(Key::global()).address(denied).await;
        assert!(!seen.expect("a response").would_admit());
        assert!(limiter.check(Key::global()).await.is_admitted());
        assert!(!limiter.check(Key::global()).await.is_admitted());
    }
}

#[tokio::test]
async fn calls_of_operators_need_no_address_and_log_nothing() {
    let list = addresses("192.0.2.0/24");
    for action in [OnUnknownAddress::Pass, OnUnknownAddress::Reject] {
        let limiter = Limiter::builder().policy(shared("p", "2/h"));
        let limiter = limiter.allow(list.clone()).on_unknown_address(action);
        let limiter = limiter.built();
        let (log, _guard) = Log::of_errors();
        let p = limiter.policy("p").expect("a policy");
        let key = Key::global();
        let charged = p.charge(key, 1).await.expect("a response");
        assert_eq!(charged.left("p"), 1);
        for seen in [p.peek(key), limiter.peek(key), p.reset(key)] {
            let seen = seen.await.expect("a response");
            assert!(seen.would_admit(), "{action:?}: {seen:?}");
            assert_eq!(seen.left("p"), 1);
        }
        assert_eq!(log.lines(""), [""; 0]);
        // A check is of a request, which has an address: a check without it is a mistake.
        let passes = action == OnUnknownAddress::Pass;
        assert_eq!(limiter.check(key).await.is_admitted(), passes);
        assert_eq!(log.lines("access list").len(), 1);
    }
}

#[tokio::test]
async fn an_allowed_client_passes_uncounted_also_when_nothing_is_left() {
    let list = addresses("192.0.2.7");
    let missing = shared("key", "9/h").key(extract::header("x-key"));
    let missing = missing.missing_key(MissingKey::Reject);
    let build = |b: LimiterBuilder| {
        let b = b.policy(shared("p", "1/h")).policy(missing.clone());
        b.allow(list.clone())
    };
    for (limiter, _server) in on_each_store(build) {
        let layer = RateLimitLayer::new(limiter.clone());
        let app = hello(&layer);
        for _ in 0..3 {
            let response = send(&app, from(LOCAL)).await;
            assert_eq!(response.status, 200);
            assert_eq!(response.field("ratelimit"), "");
        }
        assert_eq!(used(&limiter, "p", Key::global()).await, 0);
        assert_eq!(send(&app, from(OTHER)).await.status, 400);
        assert!(limiter.check(Key::global()).await.is_admitted());
        let allowed: IpAddr = [192, 0, 2, 7].into();
        let check = || limiter.check(Key::global());
        assert!(check().address(allowed).await.is_admitted());
        assert!(!check().await.is_admitted());
    }
}

#[tokio::test]
async fn a_client_on_allow_and_deny_lists_is_denied_also_on_skipped_paths_and_preflights() {
    let builder = RateLimitLayer::builder().policy(shared("p", "1/h"));
    let builder = builder.allow(addresses("192.0.2.0/24"));
    let builder = builder.deny(addresses("192.0.2.7")).skip_path("/");
    let app = hello(&builder.built());
    assert_eq!(send(&app, from(LOCAL)).await.status, 403);
    assert_eq!(send(&app, from("192.0.2.8:1")).await.status, 200);
    let preflight = Request::options("/")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "PUT")
        .extension(PeerAddr(LOCAL.parse().expect(LOCAL)));
    assert_eq!(send(&app, empty(preflight)).await.status, 403);
}

#[tokio::test]
async fn a_header_affects_lists_only_if_its_proxy_is_trusted() {
    let behind = client_ip().trusted_proxies(["198.51.100.0/24"]);
    let list = addresses("192.0.2.7").client_ip(behind);
    let builder = RateLimitLayer::builder().policy(shared("p", "9/h"));
    let app = hello(&builder.deny(list).built());
    let forwarded = |peer, list: &str| {
        let mut request = from(peer);
        let list = list.parse().expect("a value");
        request.headers_mut().insert("x-forwarded-for", list);
        request
    };
    let via_proxy = forwarded(OTHER, "192.0.2.7");
    assert_eq!(send(&app, via_proxy).await.status, 403);
    let forged = forwarded("203.0.113.1:1", "192.0.2.7");
    assert_eq!(send(&app, forged).await.status, 200);
    let evading = forwarded(LOCAL, "203.0.113.1");
    assert_eq!(send(&app, evading).await.status, 403);
}

#[tokio::test]
async fn a_list_of_keys_matches_only_keys_of_its_policy() {
    let deny = KeyList::new("api", [Key::secret("stolen")]);
    let allow = KeyList::new("api", [Key::secret("monitoring")]);
    let build = |b: LimiterBuilder| {
        b.policy(shared("all", "3/h"))
            .policy(shared("api", "1/h").key(extract::bearer()))
            .deny(deny.clone())
            .allow(allow.clone())
    };
    for (limiter, _server) in on_each_store(build) {
        let layer = RateLimitLayer::new(limiter.clone());
        let app = hello(&layer);
        assert_eq!(send(&app, bearer("stolen")).await.status, 403);
        for _ in 0..5 {
            assert_eq!(send(&app, bearer("monitoring")).await.status, 200);
        }
        for expected in [200, 429] {
            assert_eq!(send(&app, bearer("alice")).await.status, expected);
        }

        let each = |api, all| [("api", api), ("all", all)];
        let (good, bad) = (Key::secret("monitoring"), Key::secret("stolen"));
        let named = limiter.check(each(bad, Key::global())).await;
        assert!(matches!(named.kind(), DecisionKind::DenyListed));
        let named = limiter.check(each(good, bad)).await;
        assert_eq!((named.is_admitted(), named.policies().len()), (true, 0));
        // The same key of another policy is on no list.
        let other = limiter.check(each(Key::secret("bob"), good)).await;
        assert_eq!((other.is_admitted(), other.policies().len()), (true, 2));
    }
}

#[tokio::test]
async fn replacing_a_list_at_run_time_replaces_it_for_all_clones() {
    let list = AddressList::new([""; 0]).expect("a list");
    let keys = KeyList::new("p", []);
    let builder = RateLimitLayer::builder().policy(shared("p", "100/h"));
    let builder = builder.deny(list.clone()).deny(keys.clone());
    let app = hello(&builder.built());
    let status = async || send(&app, from(LOCAL)).await.status.as_u16();
    assert_eq!(status().await, 200);
    list.replace(["192.0.2.0/24"]).expect("a network");
    assert_eq!(status().await, 403);
    list.replace(["192.0.2.0/24x"]).expect_err("no network");
    assert_eq!(status().await, 403);
    list.replace([""; 0]).expect("no entries");
    assert_eq!(status().await, 200);
    keys.replace([Key::global()]);
    assert_eq!(status().await, 403);
    keys.replace([]);
    assert_eq!(status().await, 200);
}

#[test]
fn readers_see_the_old_or_the_new_list_while_it_is_replaced() {
    let list = addresses("192.0.2.0/24");
    let done = AtomicBool::new(false);
    let address = IpAddr::from([192, 0, 2, 70]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // It is on each of the lists that are swapped.
                assert!(list.contains(address));
            }
        });
        for round in 0..5_000_u32 {
            let bits = 24 + round % 3;
            let networks = ["198.51.100.0/24", &format!("192.0.2.64/{bits}")];
            list.replace(networks).expect("networks");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_list_that_can_match_no_client_is_a_config_error() {
    let policy = || Policy::new("p", quota("1/h"));
    let keys = KeyList::new("q", [Key::global()]);
    let builder = Limiter::builder().policy(policy()).allow(keys);
    let error = builder.build().expect_err("a mistake").to_string();
    assert!(error.contains("\"q\""), "{error}");
    let list = addresses("10.0.0.0/8").client_ip(client_ip().hops(0));
    let error = Limiter::builder().policy(policy()).deny(list).build();
    error.expect_err("a mistake");
}

#[tokio::test]
async fn a_list_without_a_client_address_to_match_logs_an_error() {
    let (log, _guard) = Log::of_errors();
    let build = |allows: bool| {
        let list = addresses("192.0.2.0/24");
        let builder = RateLimitLayer::builder().store(store().0);
        let builder = builder.policy(shared("p", "9/h"));
        let builder = match allows {
            true => builder.allow(list),
            false => builder.deny(list),
        };
        builder.built()
    };
    for allows in [true, false] {
        let before = log.text().lines().count();
        let layer = build(allows);
        for _ in 0..3 {
            // It passes by default.
            assert_eq!(status(&hello(&layer), "/").await, 200);
        }
        let text = log.text();
        let said: Vec<_> = text.lines().skip(before).collect();
        assert_eq!(said.len(), 1, "once, not for each request: {text}");
        let remedy = "into_make_service_with_connect_info";
        assert_contains(said[0], ["ERROR", "access list", remedy]);
    }
    // Nor can a check see it that isn't given one.
    let before = log.text().lines().count();
    let layer = build(false);
    assert!(layer.limiter().check(Key::global()).await.is_admitted());
    let text = log.text();
    let said: Vec<_> = text.lines().skip(before).collect();
    assert_eq!(said.len(), 1, "{text}");
    assert!(said[0].contains("`.address(..)`"), "{text}");
    assert!(!said[0].contains("ConnectInfo"), "no request: {text}");

    // A known address logs nothing, and neither does a list of keys.
    let before = log.text().lines().count();
    let layer = build(false);
    assert_eq!(send(&hello(&layer), from(OTHER)).await.status, 200);
    let check = layer.limiter().check(Key::global());
    assert!(check.address([198, 51, 100, 7].into()).await.is_admitted());
    assert_eq!(log.text().lines().count(), before, "{}", log.text());
}

#[tokio::test]
async fn a_request_without_an_address_for_lists_is_rejected_if_configured() {
    let list = || addresses("192.0.2.0/24");
    let keys = || KeyList::new("p", [Key::secret("sk")]);
    let build = |builder: LimiterBuilder<RateLimitLayer>| {
        let policy = shared("p", "9/h").key(extract::bearer());
        let builder = builder.store(store().0);
        let builder = builder.policy(policy.missing_key(MissingKey::Shared));
        let builder = builder.on_unknown_address(OnUnknownAddress::Reject);
        builder.built()
    };
    let unseen = |token: &str| {
        let mut request = bearer(token);
        request.extensions_mut().clear();
        request
    };
    let denies = build(RateLimitLayer::builder().deny(list()).allow(keys()));
    let response = send(&hello(&denies), unseen("sk")).await;
    assert_eq!(response.status, 403, "a list might deny it");
    assert_eq!(send(&hello(&denies), bearer("sk")).await.status, 403);
    assert_eq!(send(&hello(&denies), from(OTHER)).await.status, 200);
    let checked = denies.limiter().check(Key::global()).await;
    assert!(matches!(checked.kind(), DecisionKind::DenyListed));
    let address = [198, 51, 100, 7].into();
    let checked = denies.limiter().check(Key::global()).address(address);
    assert!(checked.await.is_admitted());

    let allows = build(RateLimitLayer::builder().allow(list()).allow(keys()));
    assert_eq!(send(&hello(&allows), unseen("sk")).await.status, 200);
    assert_eq!(send(&hello(&allows), unseen("other")).await.status, 403);
    assert_eq!(send(&hello(&allows), from(OTHER)).await.status, 200);

    // Lists of keys need no address.
    let keys = build(RateLimitLayer::builder().deny(keys()));
    assert_eq!(send(&hello(&keys), unseen("other")).await.status, 200);
    assert_eq!(send(&hello(&keys), unseen("sk")).await.status, 403);
}
