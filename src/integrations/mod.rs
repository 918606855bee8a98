//! Implementations of other crates' traits for the types of this one.

#[cfg(feature = "axum")]
pub(crate) mod axum;
#[cfg(feature = "tonic")]
pub(crate) mod tonic;
