//! Documents, and the code that they name.

use tollgate::config::LoadError;
pub(crate) use tollgate_tests::prelude::*;

/// The document of a text in TOML.
pub(crate) fn document(text: &str) -> Document {
    Document::parse(text, Format::Toml).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The paths of a document's mistakes, in order.
pub(crate) fn paths_of(error: &LoadError) -> Vec<&str> {
    let mistakes = error.mistakes().iter();
    mistakes.map(|mistake| mistake.path()).collect()
}

/// Code of each kind, under these names.
pub(crate) fn registry() -> Registry {
    let header = |parts: &Parts, name: &str| {
        let value = parts.headers.get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    let user = extract::from_fn(move |parts| header(parts, "x-user").map(Key::from));
    Registry::new()
        .key("user", user)
        .cost("tokens", move |parts| {
            header(parts, "x-tokens").map_or(1, |tokens| tokens.parse().unwrap_or(1))
        })
        .tier("plan", move |parts| header(parts, "x-plan"))
        .outcome("teapot", |outcome| {
            outcome.status().is_some_and(|status| status == 418)
        })
        .condition("internal", |parts| parts.headers.contains_key("x-internal"))
        .condition("paid", |parts| parts.headers.contains_key("x-paid"))
        .quota("quota", |_| Some(quota("7/min")))
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

/// The message of the mistakes in a text, wherever they are found.
#[track_caller]
pub(crate) fn mistakes_in(text: &str) -> String {
    let document = Document::parse(text, Format::Toml);
    let built = document.and_then(|document| document.layer(&registry()));
    built.expect_err(text).to_string()
}
