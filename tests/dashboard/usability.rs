//! The page can be read and used: by keyboard, on a phone, in light and in dark.

use serde_json::json;

use crate::{
    page::Page,
    service::{LIMIT, Service},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_legible_in_both_themes_on_a_screen_and_on_a_phone() {
    let service = Service::start().await;
    let mut page = Page::open(&service).await;
    page.assert_no_faults("sign in").await;
    page.sign_in().await;
    service.send("alice", LIMIT + 3).await;
    page.look_up("pages", "alice").await;
    page.ask("Block").await;
    page.assert_no_faults("a dialog").await;
    page.answer("Block").await;
    for (theme, width) in [
        ("light", 1200),
        ("dark", 1200),
        ("light", 390),
        ("dark", 390),
        ("light", 320),
    ] {
        page.browser.emulate(theme, width, 900).await;
        page.assert_no_faults(&format!("{theme}, {width} pixels wide"))
            .await;
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
