//! Text of a bounded length, written without allocating.

use std::fmt;

/// A buffer for an address as text: "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128" has 49 bytes.
pub(super) struct TextBuf {
    len: usize,
    bytes: [u8; 52],
}

impl Default for TextBuf {
    fn default() -> Self {
        Self {
            len: 0,
            bytes: [0; 52],
        }
    }
}

impl TextBuf {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn push(&mut self, byte: u8) {
        if let Some(end) = self.bytes.get_mut(self.len) {
            *end = byte;
            self.len += 1;
        }
    }
}

/// Each octet in decimal digits with a dot after them, and the length of that.
const OCTETS: [([u8; 4], u8); 256] = {
    let mut octets = [([0; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let mut index = if octet >= 100 {
            0
        } else if octet >= 10 {
            1
        } else {
            2
        };
        let (mut text, mut len) = ([0; 4], 0);
        while index < 3 {
            text[len] = b'0' + digits[index] as u8;
            len += 1;
            index += 1;
        }
        text[len] = b'.';
        octets[octet] = (text, len as u8 + 1);
        octet += 1;
    }
    octets
};

/// The length of the longest IPv4 address with a dot after it.
pub(super) const MAX_DOTTED_LEN: usize = 16;

/// An IPv4 address with a dot after it, and its length. Every request that is counted by address calls this, which is many
/// times faster than `Display`.
pub(super) fn dotted(octets: [u8; 4]) -> ([u8; MAX_DOTTED_LEN], usize) {
    let (mut text, mut len) = ([0; MAX_DOTTED_LEN], 0);
    for octet in octets {
        let (digits, more) = OCTETS[usize::from(octet)];
        text[len..len + 4].copy_from_slice(&digits);
        len += usize::from(more);
    }
    (text, len)
}

impl fmt::Write for TextBuf {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}
