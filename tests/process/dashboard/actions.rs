//! What an operator changes in the page is changed in the store, once it is confirmed.

use crate::dashboard::{
    page::Page,
    service::{LIMIT, Service},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_reset_credited_blocked_and_overridden_in_the_store_once_it_is_confirmed() {
    let service = Service::start().await;
    assert_eq!(service.send("alice", LIMIT + 1).await, LIMIT);
    let mut page = Page::signed_in(&service).await;
    page.look_up("pages", "alice").await;
    page.shows("#lookup-result", "0 of 5").await;
    page.shows("#lookup-result", "✗ would be rejected").await;
    let two = [("#confirm-units", "2")];
    page.act("Credit units", &two, "Cancel").await;
    assert_eq!(service.remaining("alice").await, 0);
    page.act("Credit units", &two, "Credit").await;
    page.until_says("Credited 2. Remaining now: 2 of 5.").await;
    assert_eq!(service.remaining("alice").await, 2);

    // The button that changes nothing has the focus, and Escape is the same as pressing it.
    page.ask("Reset").await;
    let on_cancel = "document.activeElement.innerText === 'Cancel'";
    page.browser.until(on_cancel).await;
    page.browser.press("Escape").await;
    let closed = "!document.querySelector('#confirm').open";
    page.browser.until(closed).await;
    assert_eq!(service.remaining("alice").await, 2);
    page.act("Reset", &[], "Reset").await;
    page.until_says("Remaining before: pages 2 of 5").await;
    page.shows("#lookup-result", "5 of 5").await;
    assert_eq!(service.get("alice").await, 200);

    page.look_up("blocked", "bob").await;
    for (action, button, status) in [
        ("Block", "Cancel", 200),
        ("Block", "Block", 429),
        ("Unblock", "Cancel", 429),
        ("Unblock", "Unblock", 200),
    ] {
        page.act(action, &[], button).await;
        if action == button {
            page.until_says(&format!("{action}ed")).await;
        }
        assert_eq!(service.get("bob").await, status, "{action}, {button}");
    }
    // From the list of blocked keys.
    page.act("Block", &[], "Block").await;
    page.shows("#block-rows", "bob").await;
    page.browser.click("#block-rows button", "Unblock").await;
    page.answer("Unblock").await;
    page.shows("#block-rows", "No key is blocked.").await;
    assert_eq!(service.get("bob").await, 200);
    page.assert_clean().await;

    // Ten years are the longest block: a mistake is shown, and changes nothing.
    let long = [("#confirm-for", "999999999")];
    page.act("Block", &long, "Block").await;
    page.shows("#lookup-message.bad", "years").await;
    assert_eq!(service.get("bob").await, 200);

    let empty = "No key has an override.";
    page.shows("#override-rows", empty).await;
    page.look_up("pages", "alice").await;
    let hundred = ("#confirm-quota", "100/h");
    page.act("Override", &[hundred], "Cancel").await;
    let mistake = [("#confirm-quota", "no quota")];
    page.act("Override", &mistake, "Override").await;
    page.until_says("invalid quota").await;
    let days = ("#confirm-for", "3");
    let fields = [hundred, days, ("#confirm-note", "ticket 4711")];
    page.act("Override", &fields, "Override").await;
    page.shows("#lookup-result", "of 100").await;
    for shown in ["alice", "100/h", "ticket 4711"] {
        page.shows("#override-rows", shown).await;
    }
    page.browser.click("#override-rows button", "Lift").await;
    page.answer("Lift").await;
    page.shows("#override-rows", empty).await;
    page.shows("#lookup-result", "of 5").await;
}
