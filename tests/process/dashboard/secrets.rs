//! The token lets in, and stays in the page's memory.

use crate::dashboard::{
    page::Page,
    service::{PATHS, Service},
};
use tollgate_tests::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lets_in_and_is_forgotten_by_signing_out_and_reloading_wherever_the_page_is_mounted()
 {
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

    service.send("alice", 6).await;
    page.look_up("pages", "alice").await;
    page.shows("#top", "alice").await;
    page.browser.click("#sign-out", "Sign out").await;
    let browser = &mut page.browser;
    browser.until("document.activeElement.id === 'token'").await;
    let rest = browser.value("document.documentElement.outerHTML").await;
    assert!(!rest.to_string().contains("alice"), "{rest}");
    let key = browser.value("document.querySelector('#lookup-key').value");
    assert_eq!(key.await, json!(""));

    for path in PATHS {
        page.go(path).await;
        let shown = page.browser.text("body").await;
        assert_contains(&shown, ["Access token"]);
        assert!(!shown.contains("pages"), "{shown}");
        page.sign_in().await;
        page.assert_clean().await;
    }
}
