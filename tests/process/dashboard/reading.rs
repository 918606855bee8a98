//! What the page shows is what the process and the store counted.

use tollgate::{
    admin::{Activity, Admin},
    config::{Watch, Watcher},
};

use crate::{
    dashboard::{
        page::Page,
        service::{LIMIT, Service, TOKEN},
    },
    sockets::grpc::serve,
};
use tollgate_tests::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_those_that_the_process_counted_and_legible_on_a_screen_and_on_a_phone() {
    let service = Arc::new(Service::start().await);
    assert_eq!(service.send("alice", LIMIT + 2).await, LIMIT);
    let mut page = Page::open(&service).await;
    page.assert_no_faults("sign in").await;
    page.sign_in().await;
    let total = "[data-policy=pages] [data-field=total]";
    for (place, text) in [
        ("#note-admitted", "5 since the start"),
        ("#note-rejected", "2, 28.6 % of both"),
        (total, "2"),
        ("#top", "alice"),
        // The fourth and the fifth request would have been rejected too.
        ("#shadows", "2 ("),
    ] {
        page.shows(place, text).await;
    }

    for (user, outcome) in [("alice", "✗ rejected, retry after"), ("bob", "✓ admitted")] {
        page.explain(user, outcome).await;
    }
    // Neither was charged.
    assert_eq!(service.remaining("alice").await, 0);
    assert_eq!(service.remaining("bob").await, LIMIT);
    let browser = &mut page.browser;
    browser.fill("#explain-headers", "no field").await;
    browser.click("#explain-form button", "Explain").await;
    let mistake = "No header field: no field";
    browser.until_shows("#explain-message", mistake).await;

    page.look_up("pages", "alice").await;
    page.ask("Block").await;
    page.assert_no_faults("a dialog").await;
    page.answer("Cancel").await;
    for (theme, width) in [
        ("light", 1200),
        ("dark", 1200),
        ("light", 320),
        ("dark", 390),
    ] {
        page.browser.emulate(theme, width, 1_000).await;
        let top = "document.activeElement.blur(); scrollTo(0, 0)";
        page.browser.value(top).await;
        let scene = format!("{theme}, {width} pixels wide");
        page.assert_no_faults(&scene).await;
    }

    // Each user comes once, and alice is rejected each time.
    let browser = &mut page.browser;
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (service, stop) = (service.clone(), stop.clone());
        async move {
            let mut users = 0;
            while !stop.load(Ordering::SeqCst) {
                assert_eq!(service.get(&format!("user-{users}")).await, 200);
                assert_eq!(service.get("alice").await, 429);
                users += 1;
            }
            users
        }
    });
    for number in [
        "#tile-admitted",
        "#tile-rejected",
        "[data-policy=pages] [data-field=admitted]",
    ] {
        let moves = format!("parseFloat(document.querySelector({number:?}).innerText) > 0");
        browser.until(&moves).await;
    }
    browser
        .until("document.querySelectorAll('#chart path.line').length === 2")
        .await;
    stop.store(true, Ordering::SeqCst);
    let users = load.await.expect("the load ends");
    browser.until_count("#note-admitted", LIMIT + users).await;
    browser.until_count("#note-rejected", 2 + users).await;
    browser.until_count(total, 2 + users).await;
    page.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_without_news_says_that_it_is_stale_and_connects_again() {
    let service = Service::start().await;
    let proxy = Proxy::to(service.address);
    let mut page = Page::open_at(proxy.addr(), "/admin").await;
    page.sign_in().await;
    proxy.hold();
    page.shows("#connection", "Stale: nothing new since").await;
    proxy.cut();
    let lost = "Stale: connection lost, next attempt at";
    page.shows("#connection", lost).await;
    proxy.pass();
    page.shows("#connection", "Live").await;
    page.assert_secret().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_application_that_counts_no_activity_says_so() {
    let service = Service::start().await;
    let mut page = Page::open_at(service.address, "/uncounted").await;
    page.browser.type_text(TOKEN).await;
    page.browser.press("Enter").await;
    page.shows("#connection", "No live numbers").await;
    page.shows("#top", "counts none").await;
    page.assert_secret().await;
}

/// A service whose policies are those of a file that is watched.
async fn watching(file: &Path) -> (SocketAddr, Arc<Watcher>) {
    let document = Document::load(file).expect("a document");
    let activity = Arc::new(Activity::new());
    let builder = document.builder(&Registry::new()).expect("a builder");
    let limiter = builder.observe(activity.clone()).built();
    let layer = RateLimitLayer::new(limiter);
    let watcher = Watch::new(file).start(&layer).expect("a watcher");
    let watcher = Arc::new(watcher);
    let admin = Admin::new(&layer)
        .activity(activity)
        .watcher(watcher.clone());
    let admin = admin.token("operators", TOKEN).router();
    let app = Router::new().nest_service("/admin", admin.expect("an admin API"));
    (serve(app).await, watcher)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_in_force_and_a_file_that_can_not_be_loaded_are_shown() {
    let folder = testkit::folder();
    let file = folder.path().join("limits.toml");
    let write = |quota: &str| {
        let text = format!("[policies.pages]\nquota = \"{quota}\"\n");
        fs::write(&file, text).expect("a file");
    };
    let document = |quota: &str| {
        let text = "document.querySelector('#config-document').textContent";
        format!("{text}.includes('quota = \"{quota}\"')")
    };
    write("6/h");
    let (address, watcher) = watching(&file).await;
    watcher.reload().await.expect("a load");
    let hash = watcher.status().hash().expect("a hash")[..12].to_owned();
    write("six");
    assert!(watcher.reload().await.is_err());
    let mut page = Page::open_at(address, "/admin").await;
    page.sign_in().await;
    for shown in ["limits.toml", &*hash, "still in force", "six"] {
        page.shows("#config-details", shown).await;
    }
    page.browser.until(&document("6/h")).await;
    page.assert_no_faults("a mistake").await;
    write("7/h");
    watcher.reload().await.expect("a reload");
    page.browser.until(&document("7/h")).await;
    page.assert_clean().await;
}
