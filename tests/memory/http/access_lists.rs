//! Clients that lists admit or deny, whatever the policies decide, and files of such lists.

use crate::http::support::*;
use tollgate::{access::OnUnknownAddress, extract::client_ip};

const LOCAL: &str = "192.0.2.7:1234";
const OTHER: &str = "198.51.100.7:1234";

fn from(peer: &str) -> Request<Body> {
    empty(Request::get("/").extension(PeerAddr(peer.parse().expect(peer))))
}

/// A request from an address, with a header.
fn from_with(peer: &str, name: &'static str, value: &str) -> Request<Body> {
    let mut request = from(peer);
    let value = value.parse().expect(value);
    request.headers_mut().insert(name, value);
    request
}

fn addresses(entry: &str) -> AddressList {
    AddressList::new([entry]).expect(entry)
}

fn bearer(token: &str) -> Request<Body> {
    from_with(LOCAL, "authorization", &format!("Bearer {token}"))
}

/// A layer with a policy, and a list.
fn listed(
    set: impl FnOnce(LimiterBuilder<RateLimitLayer>) -> LimiterBuilder<RateLimitLayer>,
) -> RateLimitLayer {
    let builder = RateLimitLayer::builder().store(store().0);
    set(builder.policy(shared("p", "9/h"))).built()
}

#[tokio::test]
async fn a_denied_address_gets_403_and_is_charged_nothing() {
    let list = AddressList::new(["192.0.2.0/24", "2001:db8::/32"]).expect("a list");
    let layer = listed(|builder| builder.deny(list));
    let (app, limiter) = (hello(&layer), layer.limiter());
    for peer in [LOCAL, "[2001:db8::1]:1", "[::ffff:192.0.2.9]:1"] {
        let response = send(&app, from(peer)).await;
        assert_eq!(response.status, 403, "{peer}");
        assert_eq!(response.field("retry-after"), "");
        assert_eq!(response.field("ratelimit"), "");
    }
    // Without HTTP.
    let denied: IpAddr = [192, 0, 2, 1].into();
    let admit = limiter.admit(Key::global()).address(denied);
    let rejected = admit.await.expect_err("a rejection");
    assert_eq!(rejected.decision().source(), DecisionSource::NotChecked);
    assert_eq!(rejected.to_string(), "the request is on a deny list");
    assert_eq!(rejected.retry_after(), RetryAfter::Never);
    assert_eq!(used(limiter, "p", Key::global()).await, 0);
    assert_eq!(send(&app, from(OTHER)).await.status, 200);
    assert_eq!(used(limiter, "p", Key::global()).await, 1);
}

#[tokio::test]
async fn an_allowed_client_passes_uncounted_also_when_nothing_is_left_or_its_key_is_missing() {
    let missing = shared("key", "9/h").key(extract::header("x-key"));
    let missing = missing.missing_key(MissingKey::Reject);
    let layer = listed(|builder| {
        let builder = builder.allow(addresses("192.0.2.7")).policy(missing);
        builder.policy(shared("one", "1/h"))
    });
    let (app, limiter) = (hello(&layer), layer.limiter());
    for _ in 0..3 {
        let response = send(&app, from(LOCAL)).await;
        assert_eq!(response.status, 200);
        assert_eq!(response.field("ratelimit"), "");
    }
    assert_eq!(used(limiter, "one", Key::global()).await, 0);
    assert_eq!(send(&app, from(OTHER)).await.status, 400);
    let check = || limiter.check(Key::global()).address([192, 0, 2, 7].into());
    assert!(limiter.check(Key::global()).await.is_admitted());
    assert!(check().await.is_admitted());
    assert!(!limiter.check(Key::global()).await.is_admitted());
}

#[tokio::test]
async fn a_client_on_allow_and_deny_lists_is_denied_also_on_skipped_paths_and_preflights() {
    let app = hello(&listed(|builder| {
        let builder = builder.allow(addresses("192.0.2.0/24")).skip_path("/");
        builder.deny(addresses("192.0.2.7"))
    }));
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
    let app = hello(&listed(|builder| builder.deny(list)));
    for (peer, forwarded, expected) in [
        (OTHER, "192.0.2.7", 403),
        // Forged, and evading.
        ("203.0.113.1:1", "192.0.2.7", 200),
        (LOCAL, "203.0.113.1", 403),
    ] {
        let request = from_with(peer, "x-forwarded-for", forwarded);
        let status = send(&app, request).await.status;
        assert_eq!(status, expected, "{forwarded} by {peer}");
    }
}

#[tokio::test]
async fn a_list_of_keys_matches_only_keys_of_its_policy() {
    let deny = KeyList::new("api", [Key::secret("stolen")]);
    let allow = KeyList::new("api", [Key::secret("monitoring")]);
    let layer = listed(|builder| {
        let api = shared("api", "1/h").key(extract::bearer());
        builder.policy(api).deny(deny).allow(allow)
    });
    let (app, limiter) = (hello(&layer), layer.limiter());
    for (token, statuses) in [
        ("stolen", [403, 403]),
        ("monitoring", [200, 200]),
        ("alice", [200, 429]),
    ] {
        for expected in statuses {
            assert_eq!(send(&app, bearer(token)).await.status, expected, "{token}");
        }
    }
    let each = |api, p| [("api", api), ("p", p)];
    let (good, bad) = (Key::secret("monitoring"), Key::secret("stolen"));
    let named = limiter.check(each(bad, Key::global())).await;
    assert!(matches!(named.kind(), DecisionKind::DenyListed));
    let named = limiter.check(each(good, bad)).await;
    assert_eq!((named.is_admitted(), named.policies().len()), (true, 0));
    // The same key of another policy is on no list.
    let other = limiter.check(each(Key::secret("bob"), good)).await;
    assert_eq!((other.is_admitted(), other.policies().len()), (true, 2));
}

#[tokio::test]
async fn replacing_a_list_at_run_time_replaces_it_for_all_clones() {
    let list = AddressList::new([""; 0]).expect("a list");
    let keys = KeyList::new("p", []);
    let app = hello(&listed(|b| b.deny(list.clone()).deny(keys.clone())));
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

/// A list of addresses decides about a request without one as configured, and logs that it cannot see it. Operators' calls need none.
#[tokio::test]
async fn a_request_without_an_address_for_lists_passes_or_is_rejected_and_is_logged_once() {
    let keys = || KeyList::new("p", [Key::secret("sk")]);
    let list = || addresses("192.0.2.0/24");
    let unseen = |token: &str| {
        let mut request = bearer(token);
        request.extensions_mut().clear();
        request
    };
    let builder = || {
        let policy = shared("p", "9/h").key(extract::bearer());
        let policy = policy.missing_key(MissingKey::Shared);
        RateLimitLayer::builder().policy(policy)
    };
    let (pass, reject) = (OnUnknownAddress::Pass, OnUnknownAddress::Reject);
    for (builder, action, listed_key, other_key) in [
        (builder().deny(list()), pass, 200, 200),
        (builder().allow(list()), pass, 200, 200),
        // A list might deny it, whatever allows it.
        (builder().deny(list()).allow(keys()), reject, 403, 403),
        (builder().allow(list()).allow(keys()), reject, 200, 403),
    ] {
        let _case = Case(format!("{builder:?}"));
        let layer = builder.on_unknown_address(action).built();
        let (app, limiter) = (hello(&layer), layer.limiter());
        let (log, _guard) = Log::of_errors();
        for _ in 0..2 {
            assert_eq!(send(&app, unseen("sk")).await.status, listed_key);
            assert_eq!(send(&app, unseen("other")).await.status, other_key);
        }
        assert_eq!(log.lines("").len(), 1, "once, not for each request");
        let remedy = "into_make_service_with_connect_info";
        assert_contains(log.text(), ["ERROR", "access list", remedy]);
        // A known address logs nothing, nor do calls of operators.
        let (log, _guard) = Log::of_errors();
        assert_eq!(send(&app, from(OTHER)).await.status, 200);
        let known = limiter.check("other").address([198, 51, 100, 7].into());
        assert!(known.await.is_admitted());
        for seen in [
            limiter.charge("other", 1).await,
            limiter.peek("other").await,
            limiter.reset("other").await,
        ] {
            assert!(seen.expect("a response").would_admit());
        }
        assert_eq!(log.text(), "");
    }
    // Lists of keys need no address.
    let app = hello(&builder().deny(keys()).on_unknown_address(reject).built());
    assert_eq!(send(&app, unseen("other")).await.status, 200);
    assert_eq!(send(&app, unseen("sk")).await.status, 403);
}

/// A file of a list.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let file = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).expect("a file");
    }
}

#[test]
fn a_list_file_has_one_entry_per_line_and_comments_and_a_bad_one_changes_nothing() {
    let text = "\u{feff}# the office\n10.0.0.0/8\n\n  192.0.2.7\t# a guest\r\n2001:db8::/32\n";
    let file = File::new("addresses.txt", text);
    let list = AddressList::from_file(&file.0).expect("a list");
    let on = |ip: &str| list.contains(ip.parse().expect(ip));
    assert!(on("10.1.2.3") && on("192.0.2.7") && on("2001:db8::1") && !on("192.0.2.8"));

    file.write("192.0.2.8\n");
    assert!(!on("192.0.2.8"), "it is read on request");
    list.reload().expect("a reload");
    assert!(on("192.0.2.8") && !on("10.1.2.3"));

    file.write("10.0.0.0/8\n# fine\n10.0.0.0/40\n");
    let error = list.reload().expect_err("a mistake").to_string();
    assert!(
        error.contains("line 3 of") && !error.contains("10.0.0.0/40"),
        "its number, not its text: {error}"
    );
    assert!(on("192.0.2.8"), "it is as it was");
    fs::remove_file(&file.0).expect("no file");
    assert!(list.reload().is_err() && on("192.0.2.8"));
    AddressList::from_file("there/is/none").expect_err("a mistake");

    let file = File::new("long.txt", "10.0.0.0/8\n");
    let long = fs::OpenOptions::new().write(true).open(&file.0);
    long.and_then(|long| long.set_len((64 << 20) + 1))
        .expect("a sparse file");
    let keys = KeyList::from_file("api", &file.0, |token| Key::secret(token)).map(drop);
    for list in [AddressList::from_file(&file.0).map(drop), keys] {
        let error = list.expect_err("a mistake");
        assert_contains(error, ["it is longer than 67108864 bytes"]);
    }
}

#[test]
fn a_key_list_file_holds_values_or_their_hashes() {
    let hash = Key::secret("third").as_str()[1..].to_owned();
    let text = format!("# stolen\nfirst\nsecond # last week\nhash:{hash}\n");
    let file = File::new("keys.txt", &text);
    let list = KeyList::from_file("api", &file.0, |token| Key::secret(token)).expect("a list");
    for token in ["first", "second", "third"] {
        assert!(list.contains(&Key::secret(token)), "{token}");
        assert!(!list.contains(&Key::new(token)), "{token}");
    }
    assert!(!list.contains(&Key::secret("# stolen")));
    for wrong in ["hash:x", "hash:short", "hash:7lEM2SSxGPnYHjFZP0w+"] {
        file.write(wrong);
        let error = list.reload().expect_err(wrong).to_string();
        assert!(
            error.contains("line 1 of") && !error.contains(wrong),
            "{error}"
        );
    }
    file.write("fourth");
    list.reload().expect("a reload");
    assert!(list.contains(&Key::secret("fourth")) && !list.contains(&Key::secret("first")));
}
