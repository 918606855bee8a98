//! What the page shows is what the process and the store counted.

use crate::dashboard::{
    page::Page,
    service::{LIMIT, Service, TOKEN},
};
use tollgate_tests::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_those_that_the_process_counted_and_move_under_load_and_a_request_is_explained()
{
    let service = Arc::new(Service::start().await);
    assert_eq!(service.send("alice", LIMIT + 2).await, LIMIT);
    let mut page = Page::signed_in(&service).await;
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

    // Each user comes once, and alice is rejected each time.
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
async fn the_units_of_leases_are_shown_by_policy() {
    let service = Service::with_leases().await;
    let mut page = Page::signed_in(&service).await;
    page.shows("#store-details", "Leased units of pages").await;
    page.shows("#store-details", " held; ").await;
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
    for (place, text) in [
        ("#connection", "No live numbers"),
        ("#top", "counts none"),
        ("#block-rows", "No key is blocked."),
    ] {
        page.shows(place, text).await;
    }
    page.assert_secret().await;
}
