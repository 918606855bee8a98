//! The page shows which configuration is in force, and whether the file could be loaded.

use std::{fs, future::IntoFuture, net::SocketAddr, path::Path, sync::Arc};

use axum::Router;
use tokio::net::TcpListener;
use tollgate::{
    RateLimitLayer,
    admin::{Activity, Admin},
    config::{Document, Registry, Watch, Watcher},
};

use crate::dashboard::{page::Page, service::TOKEN};

/// A service whose policies are those of a file that is watched.
async fn start(file: &Path) -> (SocketAddr, Arc<Watcher>) {
    let document = Document::load(file).expect("a document");
    let activity = Arc::new(Activity::new());
    let builder = document.builder(&Registry::new()).expect("a builder");
    let limiter = builder.observe(activity.clone()).build();
    let layer = RateLimitLayer::new(limiter.expect("a limiter"));
    let watcher = Watch::new(file).start(&layer).expect("a watcher");
    let watcher = Arc::new(watcher);
    let admin = Admin::new(&layer)
        .activity(activity)
        .watcher(watcher.clone());
    let admin = admin.token("operators", TOKEN).router();
    let app = Router::new().nest_service("/admin", admin.expect("an admin API"));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(axum::serve(listener, app).into_future());
    (address, watcher)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_in_force_and_a_file_that_can_not_be_loaded_are_shown() {
    let folder = testkit::folder();
    let file = folder.path().join("limits.toml");
    let write = |quota: &str| {
        let text = format!("[policies.pages]\nquota = \"{quota}\"\n");
        fs::write(&file, text).expect("a file");
    };
    write("5/h");
    let (address, watcher) = start(&file).await;
    let mut page = Page::open_at(address, "/admin").await;
    page.sign_in().await;

    write("6/h");
    watcher.reload().await.expect("a reload");
    let status = watcher.status();
    let version = &status.hash().expect("a hash")[..12];
    for shown in ["limits.toml", version] {
        page.browser.until_shows("#config-details", shown).await;
    }
    let document = |quota: &str| {
        format!(
            "document.querySelector('#config-document').textContent.includes('quota = \"{quota}\"')"
        )
    };
    page.browser.until(&document("6/h")).await;

    write("six");
    assert!(watcher.reload().await.is_err());
    for shown in ["still in force", "six"] {
        page.browser.until_shows("#config-details", shown).await;
    }
    assert_eq!(page.browser.value(&document("6/h")).await, true);
    page.browser
        .click(
            "#config summary",
            "Document",
            "document.querySelector('#config details').open",
        )
        .await;
    for (theme, width) in [("light", 1200), ("dark", 390)] {
        page.browser.emulate(theme, width, 1_000).await;
        page.assert_no_faults(theme).await;
    }

    write("7/h");
    watcher.reload().await.expect("a reload");
    page.browser.until(&document("7/h")).await;
    page.browser
        .until("!document.querySelector('#config-details').innerText.includes('still in force')")
        .await;
    page.assert_clean().await;
}
