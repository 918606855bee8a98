//! What an operator changes in the page is changed in the store, once it is confirmed.

use crate::dashboard::{
    page::Page,
    service::{LIMIT, Service},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_reset_in_the_store_once_it_is_confirmed() {
    let service = Service::start().await;
    assert_eq!(service.send("alice", LIMIT + 1).await, LIMIT);
    let mut page = Page::signed_in(&service).await;
    page.look_up("pages", "alice").await;
    page.browser.until_shows("#lookup-result", "0 of 5").await;
    page.browser
        .until_shows("#lookup-result", "✗ would be rejected")
        .await;

    page.ask("Reset").await;
    page.answer("Cancel").await;
    assert_eq!(service.remaining("alice").await, 0);

    page.ask("Reset").await;
    page.answer("Reset").await;
    let message = "Remaining before: pages 0 of 5";
    page.browser.until_shows("#lookup-message", message).await;
    page.browser.until_shows("#lookup-result", "5 of 5").await;
    assert_eq!(service.remaining("alice").await, LIMIT);
    assert_eq!(service.get("alice").await, 200);
    page.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_are_credited_to_a_key_once_it_is_confirmed() {
    let service = Service::start().await;
    assert_eq!(service.send("alice", LIMIT).await, LIMIT);
    let mut page = Page::signed_in(&service).await;
    page.look_up("pages", "alice").await;
    page.ask("Credit units").await;
    page.browser.fill("#confirm-units", "2").await;
    page.answer("Cancel").await;
    assert_eq!(service.remaining("alice").await, 0);

    page.ask("Credit units").await;
    page.browser.fill("#confirm-units", "2").await;
    page.answer("Credit").await;
    let message = "Credited 2. Remaining now: 2 of 5.";
    page.browser.until_shows("#lookup-message", message).await;
    assert_eq!(service.remaining("alice").await, 2);
    page.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_blocked_and_unblocked_once_it_is_confirmed() {
    let service = Service::start().await;
    let mut page = Page::signed_in(&service).await;
    page.look_up("blocked", "bob").await;
    for (action, button, status) in [
        ("Block", "Cancel", 200),
        ("Block", "Block", 429),
        ("Unblock", "Cancel", 429),
        ("Unblock", "Unblock", 200),
    ] {
        page.ask(action).await;
        page.answer(button).await;
        if action == button {
            page.browser
                .until_shows("#lookup-message", &format!("{action}ed"))
                .await;
        }
        assert_eq!(service.get("bob").await, status, "{action}, {button}");
    }
    let lifted = "Unblocked bob under blocked, where it was blocked until ";
    page.browser.until_shows("#lookup-message", lifted).await;
    page.ask("Unblock").await;
    page.answer("Unblock").await;
    let nothing = "Nothing was lifted: bob was not blocked under blocked.";
    page.browser.until_shows("#lookup-message", nothing).await;
    page.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_key_is_listed_and_unblocked_from_the_list() {
    let service = Service::start().await;
    let mut page = Page::signed_in(&service).await;
    page.look_up("blocked", "bob").await;
    page.ask("Block").await;
    page.answer("Block").await;
    page.browser.until_shows("#block-rows", "bob").await;
    assert_eq!(service.get("bob").await, 429);

    let open = "document.querySelector('#confirm').open";
    page.browser
        .click("#block-rows button", "Unblock", open)
        .await;
    page.answer("Unblock").await;
    page.browser
        .until_shows("#block-rows", "No key is blocked.")
        .await;
    assert_eq!(service.get("bob").await, 200);
    page.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_an_action_is_shown_and_changes_nothing() {
    let service = Service::start().await;
    let mut page = Page::signed_in(&service).await;
    page.look_up("blocked", "bob").await;
    // Ten years are the longest block.
    page.ask("Block").await;
    page.browser.fill("#confirm-for", "999999999").await;
    page.answer("Block").await;
    page.browser
        .until("document.querySelector('#lookup-message').classList.contains('bad')")
        .await;
    page.browser.until_shows("#lookup-message", "years").await;
    assert_eq!(service.get("bob").await, 200);
    page.assert_secret().await;
}
