//! The extractors of this library by their texts in documents.

use std::sync::Arc;

use super::KeyExtractor;
use crate::{error::InvalidValue, scan::Scanner};

/// Parses what follows the first word of an extractor's text.
type Parse = fn(&mut Scanner<'_>) -> Result<Arc<dyn KeyExtractor>, InvalidValue>;

/// The extractors that need no registration: the text of each, in capitals what has to stand there, and how it is parsed. Those
/// without are parsed with what is around them: the document's settings, or other keys.
pub(crate) const BUILT_IN: [(&str, Option<Parse>); 14] = [
    ("peer", Some(peer)),
    ("client_ip", None),
    ("header:NAME", None),
    ("query:NAME", None),
    ("cookie:NAME", None),
    ("bearer", None),
    ("host", Some(|_| Ok(Arc::new(super::host())))),
    ("path", Some(|_| Ok(Arc::new(super::path())))),
    ("method", Some(|_| Ok(Arc::new(super::method())))),
    #[cfg(feature = "axum")]
    (
        "matched_path",
        Some(|_| Ok(Arc::new(super::matched_path()))),
    ),
    #[cfg(not(feature = "axum"))]
    (
        "matched_path",
        Some(|_| {
            let expected = "another key: tollgate was built without its feature `axum`";
            Err(InvalidValue::new("the key \"matched_path\"", expected))
        }),
    ),
    (
        "grpc_service",
        Some(|_| Ok(Arc::new(super::grpc_service()))),
    ),
    ("grpc_method", Some(|_| Ok(Arc::new(super::grpc_method())))),
    ("global", Some(|_| Ok(Arc::new(super::global())))),
    ("same(KEY, KEY)", None),
];

fn peer(tokens: &mut Scanner<'_>) -> Result<Arc<dyn KeyExtractor>, InvalidValue> {
    let mut peer = super::peer();
    loop {
        if tokens.take_word("ipv6_prefix") {
            peer = peer.ipv6_prefix(tokens.take_number("ipv6_prefix 56")?);
        } else if tokens.take_word("ipv4_prefix") {
            peer = peer.ipv4_prefix(tokens.take_number("ipv4_prefix 24")?);
        } else if tokens.take_word("nat64") {
            peer = peer.nat64(tokens.take_text("nat64 64:ff9b:1::/96")?);
        } else {
            return Ok(Arc::new(peer));
        }
    }
}
