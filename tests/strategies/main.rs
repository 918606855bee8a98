//! What each strategy promises: against the articles' limiters, in random traffic, and while a policy changes.

#![cfg(feature = "redis")]
#![allow(missing_docs)]

#[path = "../common/answers.rs"]
mod answers;
#[path = "../common/by.rs"]
mod by;
mod changes;
mod custom;
mod laps;
mod properties;
mod sources;
mod support;
#[path = "../common/world.rs"]
mod world;
