//! Limits from configuration files.
//!
//! A document says what the builders of a [`Limiter`](crate::Limiter) and a [`RateLimitLayer`](crate::RateLimitLayer) say, as
//! text: in TOML, or in YAML or JSON with the features `config-yaml` and `config-json`.
