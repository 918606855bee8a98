//! The guide to metrics.

use crate::printed::{manifests, page::Page};

pub(crate) fn run(page: &mut Page) {
    manifests::check(&page.expect("toml"));
}
