//! The dashboard in a browser.

use crate::dashboard::{
    browser::Browser,
    service::{Service, TOKEN},
};
use tollgate_tests::prelude::*;

/// Lists what is wrong with what the page shows.
const FAULTS: &str = include_str!("faults.js");

/// The page of one service.
pub(crate) struct Page {
    pub(crate) browser: Browser,
    origin: String,
}

impl Page {
    pub(crate) async fn open(service: &Service) -> Self {
        Self::open_at(service.address, "/admin").await
    }

    pub(crate) async fn open_at(address: SocketAddr, path: &str) -> Self {
        let mut page = Self {
            browser: Browser::start().await,
            origin: format!("http://{address}/"),
        };
        page.go(path).await;
        page
    }

    pub(crate) async fn go(&mut self, path: &str) {
        let url = format!("{}{}", self.origin, path.trim_start_matches('/'));
        self.browser.open(&url).await;
        self.browser
            .until("document.activeElement.id === 'token'")
            .await;
    }

    pub(crate) async fn signed_in(service: &Service) -> Self {
        let mut page = Self::open(service).await;
        page.sign_in().await;
        page
    }

    /// Signs in, and waits for the first numbers.
    pub(crate) async fn sign_in(&mut self) {
        self.browser.type_text(TOKEN).await;
        self.browser.press("Enter").await;
        self.shows("#connection", "Live").await;
        self.shows("#policy-rows", "pages").await;
        self.shows("#tile-store", "Healthy").await;
    }

    /// Waits until an element shows a text.
    pub(crate) async fn shows(&mut self, selector: &str, text: &str) {
        self.browser.until_shows(selector, text).await;
    }

    pub(crate) async fn look_up(&mut self, policy: &str, key: &str) {
        let choose = format!("document.querySelector('#lookup-policy').value = {policy:?}");
        self.browser.value(&choose).await;
        self.browser.fill("#lookup-key", key).await;
        self.browser.press("Enter").await;
        self.shows("#lookup-result .key", key).await;
    }

    /// Clicks a button of the key that is shown, and waits for the dialog.
    pub(crate) async fn ask(&mut self, button: &str) {
        let open = "document.querySelector('#confirm').open";
        self.browser.click("#lookup-result button", button).await;
        self.browser.until(open).await;
    }

    /// Clicks a button of the key that is shown, and fills and answers the dialog.
    pub(crate) async fn act(&mut self, button: &str, fields: &[(&str, &str)], answer: &str) {
        self.ask(button).await;
        for (field, text) in fields {
            self.browser.fill(field, text).await;
        }
        self.answer(answer).await;
    }

    /// Asks what a request of this user would get.
    pub(crate) async fn explain(&mut self, user: &str, outcome: &str) {
        let headers = format!("x-user: {user}");
        self.browser.fill("#explain-headers", &headers).await;
        self.browser.click("#explain-form button", "Explain").await;
        self.shows("#explain-message", outcome).await;
        self.shows("#explain-result", user).await;
    }

    /// Waits for a message about the key that is shown.
    pub(crate) async fn until_says(&mut self, message: &str) {
        self.shows("#lookup-message", message).await;
    }

    /// Clicks a button of the dialog, which closes it.
    pub(crate) async fn answer(&mut self, button: &str) {
        let closed = "!document.querySelector('#confirm').open";
        self.browser.click("#confirm button", button).await;
        self.browser.until(closed).await;
    }

    /// Fails if what the page shows has faults.
    pub(crate) async fn assert_no_faults(&mut self, scene: &str) {
        let faults = self.browser.value(FAULTS).await;
        assert_eq!(faults, json!([]), "{scene}");
    }

    /// Fails if the page complained, requested anything elsewhere, or kept the token where others can read it.
    pub(crate) async fn assert_clean(&mut self) {
        assert_eq!(self.browser.complaints(), Vec::<String>::new());
        self.assert_secret().await;
    }

    /// Fails if the page requested anything elsewhere, or kept the token where others can read it.
    pub(crate) async fn assert_secret(&mut self) {
        let requested = self.browser.requested();
        assert!(requested.len() > 1, "{requested:?}");
        for url in &requested {
            let is_own = url.starts_with(&self.origin) || url.starts_with("data:");
            assert!(is_own && !url.contains(TOKEN), "{url}");
        }
        let kept = "[location.href, document.cookie, document.documentElement.outerHTML,
            document.querySelector('#token').value, ...Object.values(localStorage), ...Object.values(sessionStorage),
            ...(await indexedDB.databases()).map(({ name }) => name), ...(await caches.keys())].join('\\n')";
        let kept = self.browser.value(&format!("(async () => {kept})()")).await;
        let Value::String(kept) = kept else {
            panic!("no text: {kept}");
        };
        assert!(!kept.contains(TOKEN), "{kept}");
        let stored = "document.cookie.length + localStorage.length + sessionStorage.length + history.state?.length";
        let stored = self.browser.value(&format!("{stored} || 0")).await;
        assert_eq!(stored, json!(0));
    }
}
