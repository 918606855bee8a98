//! The dashboard: one page without data in it. Its script asks for a token, keeps it in a variable, and fetches what it shows
//! from the routes beside the page.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use sha2::{Digest, Sha256};

const MARKUP: &str = include_str!("page.html");

const STYLE: &str = include_str!("style.css");

/// One module, so that its names are not visible outside of it.
const SCRIPT: &str = concat!(
    include_str!("dom.js"),
    include_str!("api.js"),
    include_str!("charts.js"),
    include_str!("live.js"),
    include_str!("keys.js"),
    include_str!("insight.js"),
    include_str!("app.js"),
);

static PAGE: LazyLock<Bytes> = LazyLock::new(|| {
    let page = MARKUP.replace("/*style*/", STYLE);
    page.replace("/*script*/", SCRIPT).into()
});

static HEADERS: LazyLock<[(HeaderName, HeaderValue); 7]> = LazyLock::new(|| {
    let fixed = HeaderValue::from_static;
    // Base64 and the rest of the policy are ASCII; without a policy the page runs no script.
    let policy = HeaderValue::try_from(content_security_policy())
        .unwrap_or_else(|_| fixed("default-src 'none'"));
    [
        (header::CONTENT_TYPE, fixed("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::CACHE_CONTROL, fixed("no-store")),
        (header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
        (header::X_FRAME_OPTIONS, fixed("DENY")),
        (header::REFERRER_POLICY, fixed("no-referrer")),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            fixed("same-origin"),
        ),
    ]
});

/// Allows the page's own script and style alone, by their hashes, and requests to its own origin.
fn content_security_policy() -> String {
    let source = |text| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    [
        "default-src 'none'".to_owned(),
        format!("script-src {}", source(SCRIPT)),
        format!("style-src {}", source(STYLE)),
        "connect-src 'self'".to_owned(),
        // The icon, so that browsers don't request one from the application.
        "img-src data:".to_owned(),
        "frame-ancestors 'none'".to_owned(),
        "base-uri 'none'".to_owned(),
        "form-action 'none'".to_owned(),
        // No text becomes markup or script.
        "require-trusted-types-for 'script'".to_owned(),
        "trusted-types 'none'".to_owned(),
    ]
    .join("; ")
}

/// Handles `GET /`. The page is the same for all clients, so it needs no token.
pub(super) async fn page() -> Response {
    (HEADERS.clone(), PAGE.clone()).into_response()
}
