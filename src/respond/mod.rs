//! What an answer looks like: the fields that tell a client how it stands, and the refusal.

pub(crate) mod fields;
pub(crate) mod refusal;
