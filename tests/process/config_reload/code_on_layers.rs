//! Settings that code has set on a layer whose document is watched.

use testkit::{TempDir, folder};
use tollgate::{
    config::{Watch, WatchError, Watcher},
    layer::Rejections,
};

use crate::config_reload::{
    NEVER, document,
    writes::{NAME, renamed},
};
use tollgate_tests::prelude::*;

/// A layer that was built of a document with these settings of the layer, in a folder of its own.
fn built(settings: &str) -> (TempDir, RateLimitLayer) {
    let folder = folder();
    fs::write(folder.path().join(NAME), with(settings)).expect("a file");
    let layer = Document::load(folder.path().join(NAME)).expect("a document");
    let layer = layer.layer(&Registry::new()).expect("a layer");
    (folder, layer)
}

fn with(settings: &str) -> String {
    format!("{settings}\n{}", document(10))
}

fn watch(folder: &TempDir, layer: &RateLimitLayer) -> Result<Watcher, WatchError> {
    let watch = Watch::new(folder.path().join(NAME)).every(NEVER);
    watch.start(layer)
}

/// The response to a request that the layer rejects, with its body as text.
async fn rejected(layer: &RateLimitLayer) -> Response<String> {
    let hello = async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()));
    let service = layer.layer(service_fn(hello));
    loop {
        let request = Request::new(String::new());
        let Ok(response) = service.clone().oneshot(request).await;
        if response.status() == 429 {
            let (parts, body) = response.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            return Response::from_parts(parts, String::from_utf8_lossy(&body).into_owned());
        }
    }
}

#[tokio::test]
async fn what_code_has_set_stays_beside_the_documents_settings() {
    // The one that both have set alike stays when the document drops it.
    let (folder, layer) = built("headers = 'x_ratelimit'\nrejections = 'openai'");
    let layer = layer.rejections(Rejections::OpenAi);
    let layer = layer.refund_handler_rejections(true);
    let watcher = watch(&folder, &layer).expect("a watch");
    let is_by_code = |response: &Response<String>| response.body().contains("rate_limit_exceeded");
    for (headers, has_fields) in [("none", false), ("x_ratelimit", true)] {
        renamed(folder.path(), &with(&format!("headers = '{headers}'")));
        let changes = watcher.reload().await.expect("a document");
        // The watch may have loaded the file by itself already.
        assert!(
            changes.settings().all(|name| name == "headers"),
            "{changes}"
        );
        let response = rejected(&layer).await;
        let fields = response.headers().contains_key("x-ratelimit-limit");
        assert_eq!(fields, has_fields, "{response:?}");
        assert!(is_by_code(&response), "{response:?}");
    }
    // What both have set is a mistake that names it, and changes nothing.
    let twice = "headers = 'none'\nrefund_handler_rejections = false";
    renamed(folder.path(), &with(twice));
    let error = watcher.reload().await.expect_err("both have set it");
    let paths: Vec<_> = error.mistakes().iter().map(|it| it.path()).collect();
    assert_eq!(paths, ["refund_handler_rejections"], "{error}");
    let response = rejected(&layer).await;
    assert!(response.headers().contains_key("x-ratelimit-limit"));
    renamed(folder.path(), &with(""));
    watcher.reload().await.expect("a document");
    let response = rejected(&layer).await;
    assert!(response.headers().contains_key("ratelimit"), "{response:?}");
    assert!(is_by_code(&response), "{response:?}");
}

#[tokio::test]
async fn a_setting_of_document_and_code_is_an_error_where_the_watch_is_started() {
    type Set = fn(RateLimitLayer) -> RateLimitLayer;
    let twice: [(&str, Set); 3] = [
        ("enabled = true", |layer| layer.enabled(false)),
        ("headers = 'none'", |layer| {
            layer.headers(RateLimitHeaders::x_ratelimit())
        }),
        ("refund_handler_rejections = false", |layer| {
            layer.refund_handler_rejections(true)
        }),
    ];
    for (text, set) in twice {
        let (folder, layer) = built(text);
        let error = watch(&folder, &set(layer)).expect_err(text);
        let name = text.split(' ').next().expect("a name");
        assert!(error.to_string().starts_with(name), "{error}");
        assert!(matches!(error, WatchError::SetTwice { setting } if setting == name));
    }
}
