//! The page can be read and used: by keyboard, on a phone, in light and in dark.

use std::{
    env,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::dashboard::{
    page::Page,
    service::{LIMIT, Service},
};

/// A folder for pictures of the page: `cargo test --test dashboard` writes them there if it is set.
const PICTURES: &str = "TOLLGATE_DASHBOARD_PICTURES";

/// How long the load lasts before the pictures are taken, while it goes on: as long as the charts reach back.
const PICTURED: Duration = Duration::from_secs(130);

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
        let next = start + Duration::from_secs(1) * u32::try_from(second).expect("few");
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
    page.browser.fill("#explain-headers", "x-user: alice").await;
    let explained = "document.querySelector('#explain-result').innerText.includes('alice')";
    page.browser
        .click("#explain-form button", "Explain", explained)
        .await;
    page.ask("Block").await;
    page.assert_no_faults("a dialog").await;
    page.answer("Block").await;
    page.browser.until_shows("#top", "alice").await;
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
            tokio::time::sleep(Duration::from_millis(1_500)).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn everything_can_be_done_by_keyboard_and_the_focus_is_seen() {
    let service = Service::start().await;
    service.send("alice", LIMIT).await;
    let mut page = Page::signed_in(&service).await;
    let browser = &mut page.browser;
    let focused = |id: &str| format!("document.activeElement.id === {id:?}");
    browser.tab_to(&focused("lookup-key")).await;
    browser.type_text("alice").await;
    browser.press("Enter").await;
    browser.until_shows("#lookup-result", "0 of 5").await;
    let on = |text: &str| format!("document.activeElement.innerText === {text:?}");
    browser.tab_to(&on("Reset")).await;
    let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline.await, json!("solid"));
    browser.press("Enter").await;
    // The button that changes nothing has the focus, and Escape is the same as pressing it.
    browser.until(&on("Cancel")).await;
    browser.press("Escape").await;
    browser.until(&on("Reset")).await;
    assert_eq!(service.remaining("alice").await, 0);

    page.browser.press("Enter").await;
    page.browser.until(&on("Cancel")).await;
    page.browser.press("Tab").await;
    page.browser.press("Enter").await;
    page.browser.until_shows("#lookup-message", "Reset.").await;
    // The focus is where it was, on a button that was drawn anew.
    page.browser.until(&on("Reset")).await;
    assert_eq!(service.remaining("alice").await, LIMIT);
    page.assert_clean().await;
}
