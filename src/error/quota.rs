//! Errors of quotas as text.

/// The error of text that is no [`Quota`](crate::Quota). It names the problem, and shows valid quotas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid quota {text:?}: {problem}; expected a quota such as \"100/min\", \"10/s burst 20\", \"5000 per day\", \"3/500ms\" or \"8 concurrent\""
)]
pub struct ParseQuotaError {
    pub(crate) text: String,
    pub(crate) problem: String,
}
