//! Text that is written on the stack: what becomes of it copies it once, at its length.

use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;

/// A header's value or a small body in the making. Longer ones are moved to the heap.
#[derive(Debug, Default)]
pub(super) struct Line(SmallVec<[u8; 256]>);

impl Line {
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.text(digits.format(number))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a header's value; `None` if it can't be one.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        HeaderValue::from_bytes(&self.0).ok()
    }

    /// As a body.
    pub(super) fn body(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}
