//! The policies of a report.

use serde::Serialize;

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::replay) enum Role {
    Live,
    Ban,
    /// Its rejections are those that it would make.
    Shadow,
}

/// A policy of the document.
#[derive(Clone, Debug)]
pub(in crate::replay) struct Policy {
    pub(in crate::replay) name: String,
    pub(in crate::replay) quota: String,
    pub(in crate::replay) role: Role,
    pub(in crate::replay) is_in_flight: bool,
    /// Whether it applies to no request.
    pub(in crate::replay) is_by_hand: bool,
    /// Whether it applies to all requests that have a key.
    pub(in crate::replay) is_for_all: bool,
}
