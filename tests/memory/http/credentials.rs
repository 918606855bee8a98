//! A value that looks like a credential is kept as a hash, and one that is given twice is no key.

use crate::http::{extractors::*, support::*};

/// Whether the value of a header and of a query parameter of this name is kept as a hash.
fn is_hashed(name: &str) -> bool {
    let head = |request: Request<Body>| request.into_parts().0;
    let by_header = extract::header(name)
        .extract(&head(with(name, "alice")))
        .key();
    let by_query = extract::query(name)
        .extract(&head(to(&format!("/?{name}=alice"))))
        .key();
    assert_eq!(by_header, by_query, "{name}");
    match by_header {
        Some(key) if key == Key::secret("alice") => true,
        Some(key) if key == Key::new("alice") => false,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_value_that_looks_like_a_credential_is_hashed() {
    let names = "authorization Proxy-Authorization X-API-Key api-key apikey x-apikey \
        api_key key x-auth-token access_token accesstoken client_secret \
        password passwd x-session sessionid x-auth jwt sid x-credentials";
    for name in names.split(' ') {
        assert!(is_hashed(name), "{name}");
    }
    let names = "x-tenant x-user user-agent accept-language x-author monkey keyboard \
        side account";
    for name in names.split(' ') {
        assert!(!is_hashed(name), "{name}");
    }
    // Headers' names have no case.
    let head = |request: Request<Body>| request.into_parts().0;
    let by_query = extract::query("signingKey")
        .extract(&head(to("/?signingKey=alice")))
        .key();
    assert_eq!(by_query, Some(Key::secret("alice")));
}

#[tokio::test]
async fn several_different_values_are_no_key() {
    let head = "x-tenant";
    has_no_key(extract::header(head), lines(head, &["a", "b"])).await;
    has_no_key(extract::header(head), lines(head, &["", "a"])).await;
    let token = ["Bearer a", "Bearer b"];
    has_no_key(extract::bearer(), lines("authorization", &token)).await;
    for twice in ["/?q=a&q=b", "/?q=a&x=y&%71=b", "/?q=&q=a", "/?q=a&q"] {
        has_no_key(extract::query("q"), to(twice)).await;
    }
    for twice in ["c=a; c=b", "c=a; x=y; c=b", "c=; c=a"] {
        has_no_key(extract::cookie("c"), with("cookie", twice)).await;
    }
    has_no_key(extract::cookie("c"), lines("cookie", &["c=a", "c=b"])).await;

    // HTTP/2 sends cookies in several lines, and lists are one line's.
    let requests = [(lines("cookie", &["a=1", "c=x", "b=2"]), Key::secret("x"))];
    each_counts_as(extract::cookie("c"), requests).await;
    let requests = [(with(head, "a, b"), Key::new("a, b"))];
    each_counts_as(extract::header(head), requests).await;
}

#[tokio::test]
async fn a_value_given_twice_is_reported_as_such() {
    let layer = counted_by(extract::query("tenant"));
    let response = send(&hello(&layer), to("/?tenant=a&tenant=b")).await;
    assert_eq!(response.status, 400);
    assert_eq!(
        response.json()["detail"],
        "The request lacks the query parameter tenant (with one valid value)."
    );
    assert_eq!(count(&layer, Key::new("a")).await, 0);
}
