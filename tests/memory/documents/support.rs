//! Documents, and the code that they name.

use http::{Request, request::Parts};
use tollgate::{
    Key, Quota,
    config::{Document, Format, LoadError, Registry},
    extract,
};

/// The document of a text in TOML.
pub(crate) fn document(text: &str) -> Document {
    Document::parse(text, Format::Toml).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The paths of a document's mistakes, in order.
pub(crate) fn paths_of(error: &LoadError) -> Vec<&str> {
    error
        .mistakes()
        .iter()
        .map(|mistake| mistake.path())
        .collect()
}

/// Code of each kind, under these names.
pub(crate) fn registry() -> Registry {
    let header = |parts: &Parts, name: &str| {
        let value = parts.headers.get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    Registry::new()
        .key(
            "user",
            extract::from_fn(move |parts| header(parts, "x-user").map(Key::from)),
        )
        .cost("tokens", move |parts| {
            header(parts, "x-tokens").map_or(1, |tokens| tokens.parse().unwrap_or(1))
        })
        .tier("plan", move |parts| header(parts, "x-plan"))
        .outcome("teapot", |outcome| {
            outcome.status().is_some_and(|status| status == 418)
        })
        .condition("internal", |parts| parts.headers.contains_key("x-internal"))
        .condition("paid", |parts| parts.headers.contains_key("x-paid"))
        .label("label", |parts| {
            let name = parts.headers.get("x-name")?;
            Some(name.to_str().ok()?.to_owned())
        })
        .quota("quota", |_| Some(Quota::requests(7).per_minute()))
        .quota_lookup("lookup", |_| async {
            Some(Quota::requests(7).per_minute())
        })
        .strategy("own", tollgate::SlidingWindow::buckets(4))
        .on_rejection("page", |rejected, _| {
            http::Response::builder()
                .status(rejected.status())
                .body("a page".to_owned())
                .unwrap_or_default()
        })
}

/// The head of a request.
pub(crate) fn parts(method: &str, path: &str, headers: &[(&'static str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}
