//! A guide to choosing limits, page by page.
//!
//! Each page begins with what the reader decides there. Its programs are compiled, and their assertions run as tests.
//!
//! - [`strategies`]: which strategy counts a quota, and what each admits at a window's edge.

#[doc = include_str!("../docs/guide/strategies.md")]
pub mod strategies {}
