//! A text buffer on the stack, which is copied once, at its final length.

use bytes::Bytes;
use http::HeaderValue;

/// Length up to which a text stays on the stack; most are shorter.
const INLINE_LEN: usize = 256;

/// Builds a header value or a small body.
#[derive(Debug)]
pub(super) struct HeaderBuf {
    len: usize,
    inline: [u8; INLINE_LEN],
    /// The whole text, if it is longer than `inline`.
    heap: Vec<u8>,
}

impl HeaderBuf {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            len: 0,
            inline: [0; INLINE_LEN],
            heap: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let end = self.len + text.len();
        match self.inline.get_mut(self.len..end) {
            Some(bytes) => bytes.copy_from_slice(text.as_bytes()),
            None => self.spill(text),
        }
        self.len = end;
        self
    }

    #[cold]
    fn spill(&mut self, text: &str) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.len]);
        }
        self.heap.extend_from_slice(text.as_bytes());
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.text(digits.format(number))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The text as a header value; `None` if it has characters that are not allowed there.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        HeaderValue::from_bytes(self.bytes()).ok()
    }

    /// The text as a body.
    pub(super) fn body(&self) -> Bytes {
        Bytes::copy_from_slice(self.bytes())
    }

    fn bytes(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.heap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_keeps_all_that_was_written_however_long_it_is() {
        for first in [0, 1, INLINE_LEN - 1, INLINE_LEN, INLINE_LEN + 1] {
            for second in [0, 1, 2, INLINE_LEN, 2 * INLINE_LEN] {
                let (a, b) = ("a".repeat(first), "b".repeat(second));
                let mut buf = HeaderBuf::new();
                buf.text(&a).text(&b).number(7);
                assert_eq!(buf.body(), format!("{a}{b}7"));
                assert_eq!(buf.value().expect("a value"), format!("{a}{b}7"));
            }
        }
    }
}
