//! The token lets in, and stays in the page's memory.

use crate::dashboard::{
    page::Page,
    service::{PATHS, Service},
};
use tollgate_tests::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_does_not_sign_in() {
    let service = Service::start().await;
    let mut page = Page::open(&service).await;
    for wrong in ["a-token-of-other-people", "ключ"] {
        page.browser.type_text(wrong).await;
        page.browser.press("Enter").await;
        page.shows("#sign-in-error", "This token is wrong.").await;
        let browser = &mut page.browser;
        let signed_in = browser.value("document.querySelector('#dashboard').checkVisibility()");
        assert_eq!(signed_in.await, json!(false));
        let clear = "document.querySelector('#sign-in-error').textContent = ''";
        browser.value(clear).await;
    }
    // The browser itself reports the status of the response.
    for complaint in page.browser.complaints() {
        assert_contains(&complaint, ["status of 401"]);
    }
    page.sign_in().await;
    page.assert_secret().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_out_and_reloading_forget_the_token_and_what_was_shown_wherever_the_page_is_mounted()
 {
    let service = Service::start().await;
    service.send("alice", 6).await;
    let mut page = Page::signed_in(&service).await;
    page.look_up("pages", "alice").await;
    page.shows("#top", "alice").await;
    page.act("Reset", &[], "Cancel").await;
    page.browser.click("#sign-out", "Sign out").await;
    let browser = &mut page.browser;
    browser.until("document.activeElement.id === 'token'").await;
    let rest = browser.value("document.documentElement.outerHTML").await;
    assert!(!rest.to_string().contains("alice"), "{rest}");
    let key = browser.value("document.querySelector('#lookup-key').value");
    assert_eq!(key.await, json!(""));

    page.sign_in().await;
    page.assert_clean().await;
    // Wherever it is mounted, with and without a slash.
    for path in PATHS {
        page.go(path).await;
        let shown = page.browser.text("body").await;
        assert_contains(&shown, ["Access token"]);
        assert!(!shown.contains("pages"), "{shown}");
        page.sign_in().await;
        page.assert_clean().await;
    }
}
