//! One credential in either of two headers, in one bucket.

use crate::http::support::*;

fn either() -> impl KeyExtractor {
    extract::header("x-api-key").or_same(extract::bearer())
}

#[tokio::test]
async fn a_credential_has_one_bucket_in_either_header() {
    let policy = Policy::new("requests", quota("2/min")).key(either());
    let app = app([policy]);
    let mut statuses = Vec::new();
    for n in 0..3 {
        for (name, value) in [("x-api-key", "sk_1"), ("authorization", "Bearer sk_1")] {
            statuses.push((n, name, send(&app, with(name, value)).await.status.as_u16()));
        }
    }
    let admitted = statuses.iter().filter(|(_, _, status)| *status == 200);
    assert_eq!(admitted.count(), 2, "{statuses:?}");
    let other = send(&app, with("x-api-key", "sk_2")).await;
    assert_eq!(other.status, 200);
    // Without either the response names both.
    assert_eq!(status(&app, "/").await, 400);
    let lacks = send(&app, with("x-other", "")).await.json();
    let detail = lacks["detail"].as_str().expect("a detail").to_owned();
    assert_contains(&detail, ["x-api-key", " or ", "uthorization"]);
}

#[test]
fn the_first_of_two_headers_is_used_and_equal_text_is_one_key() {
    let request = http::Request::get("/").header("x-api-key", "sk_1");
    let request = request.header("authorization", "Bearer sk_2").body(());
    let (parts, ()) = request.expect("a request").into_parts();
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
