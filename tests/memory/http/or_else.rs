//! One key or else another, which never share a bucket; one key in either of two headers, which do; and what a middleware left.

use proptest::prelude::*;

use crate::http::{extractors::*, support::*};

#[derive(Clone)]
struct User(&'static str);

fn first(key: Key) -> Key {
    Key::tuple([Key::new("1"), key])
}

fn second(key: Key) -> Key {
    Key::tuple([Key::new("2"), key])
}

#[tokio::test]
async fn a_key_counts_or_else_the_address() {
    let both = |value: &str| {
        let mut request = with("x-api-key", value);
        let peer = PeerAddr(address("192.0.2.1:1"));
        request.extensions_mut().insert(peer);
        request
    };
    let key = extract::header("x-api-key").secret();
    let requests = [
        (both("sk_1"), first(Key::secret("sk_1"))),
        (from_peer("192.0.2.1:1"), second(ip("192.0.2.1"))),
        // An empty one is none.
        (both(""), second(ip("192.0.2.1"))),
    ];
    each_counts_as(key.or_else(extract::peer()), requests).await;
}

#[tokio::test]
async fn keys_of_different_alternatives_are_never_equal() {
    // A key that reads like an address is no address.
    let requests = [
        (with("x-tenant", "192.0.2.1"), first(Key::new("192.0.2.1"))),
        (from_peer("192.0.2.1:1"), second(ip("192.0.2.1"))),
    ];
    let tenant = extract::header("x-tenant");
    each_counts_as(tenant.or_else(extract::peer()), requests).await;
    // Nor is a third's a second's, however they are grouped.
    let [a, b, c] = ["x-a", "x-b", "x-c"].map(extract::header);
    let same = Key::new("same");
    let third = Key::tuple([Key::new("3"), same]);
    let flat = a.clone().or_else(b.clone()).or_else(c.clone());
    let last = a.clone().or_else(b.clone().or_else(c.clone()));
    let inner: Arc<dyn KeyExtractor> = Arc::new(a.or_else(b));
    for (choice, keys) in [
        (arc(flat), [first(same), second(same), third]),
        (
            arc(last),
            [first(same), second(first(same)), second(second(same))],
        ),
        (
            arc(inner.or_else(c)),
            [first(first(same)), first(second(same)), second(same)],
        ),
    ] {
        let requests = ["x-a", "x-b", "x-c"].map(|name| with(name, "same"));
        each_counts_as(choice, requests.into_iter().zip(keys)).await;
    }
}

proptest! {
    #[test]
    fn no_value_of_the_first_alternative_is_a_key_of_the_second(a in "[12+#:.a]{1,4}", b in "[12+#:.a]{1,4}", c in "[12+#:.a]{1,4}") {
        let parts = |lines: [(&str, &str); 2]| {
            head(lines.iter().fold(Request::get("/"), |all, (name, value)| all.header(*name, *value)))
        };
        let of = |name| extract::header(name);
        let choices = [
            of("x-a").or_else(of("x-c")),
            (of("x-a"), of("x-b")).or_else(of("x-c")),
            (of("x-a"), of("x-b")).or_else((of("x-c"), of("x-d"))),
            extract::path().or_else(of("x-a")).or_else(of("x-c")),
        ];
        for choice in choices {
            let before = choice.extract(&parts([("x-a", &a), ("x-b", &b)])).key();
            let after = choice.extract(&parts([("x-c", &c), ("x-d", &b)])).key();
            if format!("{choice:?}").contains("Path") {
                prop_assert_eq!(before, after);
            } else {
                prop_assert!(before.is_some() && after.is_some() && before != after);
            }
        }
    }
}

#[tokio::test]
async fn a_request_with_neither_is_handled_as_the_last_extractor_says() {
    let key = || extract::header("x-api-key");
    // Without an address: one bucket. Without a header: rejected.
    let layer = counted_by(key().or_else(extract::peer()));
    assert_eq!(status(&hello(&layer), "/").await, 200);
    assert_eq!(count(&layer, Key::missing()).await, 1);
    has_no_key(extract::peer().or_else(key()), to("/")).await;
    let policy = Policy::new("p", quota("1/h")).key(key().or_else(key()));
    let skips = app([policy.missing_key(MissingKey::Skip)]);
    assert_eq!(statuses(&skips, 3).await, [200; 3]);
}

#[tokio::test]
async fn a_user_id_set_by_a_middleware_is_the_key() {
    let by_user = || extract::extension::<User>(|User(name)| Key::new(name));
    let requests = [
        (from(User("alice")), Key::new("alice")),
        (from(User("bob")), Key::new("bob")),
    ];
    each_counts_as(by_user(), requests).await;
    has_no_key(by_user(), to("/")).await;
    has_no_key(by_user(), from(Arc::new(User("alice")))).await;
    let requests = [
        (from(User("alice")), first(Key::new("alice"))),
        (to("/"), second(Key::new("/"))),
    ];
    each_counts_as(by_user().clone().or_else(extract::path()), requests).await;
    assert!(format!("{:?}", by_user()).contains("User"));
}

#[test]
fn the_debug_form_of_a_choice_names_its_alternatives() {
    let by_code = extract::from_fn(|_: &Parts| None);
    let choice = extract::path().or_else(extract::method()).or_else(by_code);
    assert_eq!(format!("{choice:?}"), "OrElse[Path, Method, FromFn(..)]");
}

fn either() -> impl KeyExtractor {
    extract::header("x-api-key").or_same(extract::bearer())
}

#[tokio::test]
async fn a_credential_has_one_bucket_in_either_header() {
    let key = Key::secret("sk_1");
    let token = with("authorization", "Bearer sk_1");
    each_counts_as(either(), [(with("x-api-key", "sk_1"), key), (token, key)]).await;
    // Without either the response names both.
    let lacks = send(&hello(&counted_by(either())), to("/")).await;
    assert_eq!(lacks.status, 400);
    assert_contains(lacks.detail(), ["x-api-key", " or ", "uthorization"]);
}

#[test]
fn the_first_of_two_headers_is_used_and_equal_text_is_one_key() {
    let request = Request::get("/").header("x-api-key", "sk_1");
    let parts = head(request.header("authorization", "Bearer sk_2"));
    assert_eq!(either().extract(&parts).key(), Some(Key::secret("sk_1")));
    assert_eq!(either().key_from_text(&["sk_1"]), Some(Key::secret("sk_1")));
    assert_eq!(either().on_missing_key(), MissingKey::Reject);
    let address = extract::header("x-api-key").or_same(extract::peer());
    assert_eq!(address.on_missing_key(), MissingKey::Shared);
    let global = extract::global().or_same(extract::bearer());
    assert_eq!(global.fixed_key(), Some(Key::global()));
    let invalid = extract::bearer().or_same(extract::header("a b"));
    assert!(invalid.validate().is_err());
    let _: Arc<dyn KeyExtractor> = Arc::new(invalid);
}
