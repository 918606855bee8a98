//! One key or else another, which never share a bucket; and what a middleware left.

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
    each_counts_as(
        extract::header("x-api-key")
            .secret()
            .or_else(extract::peer()),
        vec![
            (both("sk_1"), first(Key::secret("sk_1"))),
            (from_peer("192.0.2.1:1"), second(ip("192.0.2.1"))),
            // An empty one is none.
            (both(""), second(ip("192.0.2.1"))),
        ],
    )
    .await;
}

#[tokio::test]
async fn keys_of_different_alternatives_are_never_equal() {
    // A key that reads like an address is no address.
    let requests = [
        (with("x-tenant", "192.0.2.1"), first(Key::new("192.0.2.1"))),
        (from_peer("192.0.2.1:1"), second(ip("192.0.2.1"))),
    ];
    each_counts_as(
        extract::header("x-tenant").or_else(extract::peer()),
        requests,
    )
    .await;
    // Nor is a third's a second's, however they are grouped.
    let [a, b, c] = ["x-a", "x-b", "x-c"].map(extract::header);
    let same = Key::new("same");
    let requests = [
        (with("x-a", "same"), first(same)),
        (with("x-b", "same"), second(same)),
        (with("x-c", "same"), Key::tuple([Key::new("3"), same])),
    ];
    each_counts_as(a.clone().or_else(b.clone()).or_else(c.clone()), requests).await;
    let requests = [
        (with("x-a", "same"), first(same)),
        (with("x-b", "same"), second(first(same))),
        (with("x-c", "same"), second(second(same))),
    ];
    each_counts_as(a.clone().or_else(b.clone().or_else(c.clone())), requests).await;
    let inner: Arc<dyn KeyExtractor> = Arc::new(a.or_else(b));
    let requests = [
        (with("x-a", "same"), first(first(same))),
        (with("x-b", "same"), first(second(same))),
        (with("x-c", "same"), second(same)),
    ];
    each_counts_as(inner.or_else(c), requests).await;
}

proptest! {
    #[test]
    fn no_value_of_the_first_alternative_is_a_key_of_the_second(a in "[12+#:.a]{1,4}", b in "[12+#:.a]{1,4}", c in "[12+#:.a]{1,4}") {
        let head = |lines: &[(&'static str, &str)]| {
            let request = lines.iter().fold(Request::builder(), |r, (name, value)| r.header(*name, *value));
            request.body(()).expect("a request").into_parts().0
        };
        let of = |name| extract::header(name);
        let choices = [
            of("x-a").or_else(of("x-c")),
            (of("x-a"), of("x-b")).or_else(of("x-c")),
            (of("x-a"), of("x-b")).or_else((of("x-c"), of("x-d"))),
            extract::path().or_else(of("x-a")).or_else(of("x-c")),
        ];
        for choice in choices {
            let before = choice.extract(&head(&[("x-a", &a), ("x-b", &b)])).key();
            let after = choice.extract(&head(&[("x-c", &c), ("x-d", &b)])).key();
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
    let skips = policy.missing_key(MissingKey::Skip);
    let layer = RateLimitLayer::builder().policy(skips).built();
    for _ in 0..3 {
        assert_eq!(status(&hello(&layer), "/").await, 200);
    }
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
    let choice = extract::path()
        .or_else(extract::method())
        .or_else(extract::from_fn(|_: &Parts| None));
    assert_eq!(format!("{choice:?}"), "OrElse[Path, Method, FromFn(..)]");
}
