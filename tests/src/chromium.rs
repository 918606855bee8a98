//! A browser without a window.

use testkit::Program;

const BROWSERS: [&str; 3] = ["chromium", "google-chrome", "google-chrome-stable"];

/// Starts a browser that opens `url`, with these switches beside those that every test needs.
pub fn start(url: &str, switches: &[&str]) -> Program {
    Program::start(&BROWSERS, |command, folder| {
        let profile = format!("--user-data-dir={}", folder.display());
        command.env("HOME", folder).args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--disable-breakpad",
            "--disable-crash-reporter",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-sync",
            "--no-first-run",
            "--no-proxy-server",
            &profile,
        ]);
        command.args(switches).arg(url);
    })
}
