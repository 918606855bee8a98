//! Rejections of browsers: a page to read.

use crate::http::{on_rejection::once, support::*};

/// The rejection of a request that follows an admitted one.
async fn rejection_of(request: Request<Body>) -> TestResponse {
    let app = hello(&once());
    status(&app, "/").await;
    let response = send(&app, request).await;
    assert_eq!(response.status, 429);
    response
}

#[tokio::test]
async fn browsers_are_rejected_with_a_page_and_other_clients_with_json() {
    let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (accept, text) in [
        (firefox, true),
        ("text/plain", true),
        ("TEXT/*;q=0.5", true),
        ("*/*", false),
        ("", false),
        ("application/json", false),
        ("text/html, application/json;q=0.1", false),
        ("text/html, application/problem+json", false),
        ("text/html, application/json;q=0", true),
        ("text/html;q=0.000, */*", false),
        ("image/avif,image/webp", false),
        (";;,,q=", false),
    ] {
        let response = rejection_of(with("accept", accept)).await;
        let expected = match text {
            true => "text/plain; charset=utf-8",
            false => "application/problem+json",
        };
        assert_eq!(response.field("content-type"), expected, "{accept}");
        let length = response.body.len().to_string();
        assert_eq!(response.field("content-length"), length);
        assert_eq!(response.field("cache-control"), "no-store");
        assert_eq!(response.retry_after(), Some(3_600));
        if text {
            let words = response.text();
            assert!(words.starts_with("429 Too Many Requests\n"), "{words}");
            assert_contains(words, ["Exceeded: once. Try again in 3600 seconds."]);
        }
    }
    // Several lines are one list; what is no text is nothing.
    let both = lines("accept", &["text/html", "application/json"]);
    for request in [both, with("accept", b"text/\xff")] {
        let response = rejection_of(request).await;
        let media_type = response.field("content-type");
        assert_eq!(media_type, "application/problem+json", "{response:?}");
    }
}
