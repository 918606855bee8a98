//! What the page shows can be read: on a screen and on a phone, in light and in dark.

use std::env;

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

/// A folder for pictures of the page: this test writes them there if it is set.
const PICTURES: &str = "TOLLGATE_DASHBOARD_PICTURES";

/// How long the load lasts before the pictures are taken, while it goes on: as long as the charts reach back.
const PICTURED: Duration = secs(130);

/// Requests that come and go in waves, until the task is dropped.
async fn load_in_waves(service: Arc<Service>) {
    let start = Instant::now();
    let mut second = 0_u64;
    loop {
        let wave = 30 + 12 * (second / 6 % 4) + 7 * (second % 3);
        for n in 0..wave {
            let user = format!("user-{}", second * 1_000 + n);
            service.get(&user).await;
        }
        service.send("alice", 4 + 9 * (second / 15 % 2)).await;
        service.send("bob", 3 + second % 5).await;
        service.send("carol", second % 2).await;
        second += 1;
        let next = start + secs(1) * u32::try_from(second).expect("few");
        tokio::time::sleep_until(next.into()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_legible_in_both_themes_on_a_screen_and_on_a_phone() {
    let pictures = env::var_os(PICTURES).map(PathBuf::from);
    let service = Arc::new(Service::start().await);
    let mut page = Page::open(&service).await;
    page.assert_no_faults("sign in").await;
    page.sign_in().await;
    service.send("alice", LIMIT + 3).await;
    let load = pictures.is_some().then(|| {
        let load = tokio::spawn(load_in_waves(service.clone()));
        load.abort_handle()
    });
    if load.is_some() {
        tokio::time::sleep(PICTURED).await;
    }
    page.look_up("pages", "alice").await;
    page.explain("alice", "✗ rejected").await;
    page.ask("Block").await;
    page.assert_no_faults("a dialog").await;
    page.answer("Block").await;
    page.shows("#top", "alice").await;
    let scenes = [
        ("light", 1200, 1400, Some("light")),
        ("dark", 1200, 1400, Some("dark")),
        ("light", 390, 1000, Some("phone")),
        ("dark", 390, 1000, None),
        ("light", 320, 900, None),
    ];
    for (theme, width, height, name) in scenes {
        page.browser.emulate(theme, width, height).await;
        page.browser
            .value("document.activeElement.blur(); scrollTo(0, 0)")
            .await;
        page.assert_no_faults(&format!("{theme}, {width} pixels wide"))
            .await;
        if let (Some(folder), Some(name)) = (&pictures, name) {
            // The charts are drawn for this width by the next event.
            tokio::time::sleep(ms(1_500)).await;
            let admits = "parseFloat(document.querySelector('#tile-admitted').innerText) > 0";
            page.browser.until(admits).await;
            let path = folder.join(format!("dashboard-{name}.png"));
            page.browser.screenshot(&path).await;
        }
    }
    if let Some(load) = load {
        load.abort();
    }
    page.assert_clean().await;
}

/// A service whose policies are those of a file that is watched.
async fn start(file: &Path) -> (SocketAddr, Arc<Watcher>) {
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
    let (address, watcher) = start(&file).await;
    watcher.reload().await.expect("a load");
    let hash = watcher.status().hash().expect("a hash")[..12].to_owned();
    write("six");
    assert!(watcher.reload().await.is_err());
    let mut page = Page::open_at(address, "/admin").await;
    page.sign_in().await;
    let browser = &mut page.browser;
    for shown in ["limits.toml", &*hash, "still in force", "six"] {
        browser.until_shows("#config-details", shown).await;
    }
    browser.until(&document("6/h")).await;
    browser.click("#config summary", "Document").await;
    let open = "document.querySelector('#config details').open";
    browser.until(open).await;
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
