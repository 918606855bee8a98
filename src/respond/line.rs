//! Text that is written on the stack: what becomes of it copies it once, at its length.

use bytes::Bytes;
use http::HeaderValue;

/// What most are no longer than.
const NEAR: usize = 256;

/// A header's value or a small body in the making.
#[derive(Debug)]
pub(super) struct Line {
    len: usize,
    near: [u8; NEAR],
    /// All of it, if it is longer.
    far: Vec<u8>,
}

impl Line {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            len: 0,
            near: [0; NEAR],
            far: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let end = self.len + text.len();
        match self.near.get_mut(self.len..end) {
            Some(place) => place.copy_from_slice(text.as_bytes()),
            None => self.add_far(text),
        }
        self.len = end;
        self
    }

    #[cold]
    fn add_far(&mut self, text: &str) {
        if self.far.is_empty() {
            self.far.extend_from_slice(&self.near[..self.len]);
        }
        self.far.extend_from_slice(text.as_bytes());
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.text(digits.format(number))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As a header's value; `None` if it can't be one.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        HeaderValue::from_bytes(self.bytes()).ok()
    }

    /// As a body.
    pub(super) fn body(&self) -> Bytes {
        Bytes::copy_from_slice(self.bytes())
    }

    fn bytes(&self) -> &[u8] {
        self.near.get(..self.len).unwrap_or(&self.far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_all_that_was_written_however_long_it_is() {
        for first in [0, 1, NEAR - 1, NEAR, NEAR + 1] {
            for second in [0, 1, 2, NEAR, 2 * NEAR] {
                let (a, b) = ("a".repeat(first), "b".repeat(second));
                let mut line = Line::new();
                line.text(&a).text(&b).number(7);
                assert_eq!(line.body(), format!("{a}{b}7"));
                assert_eq!(line.value().expect("a value"), format!("{a}{b}7"));
            }
        }
    }
}
