//! UUIDs in 23 characters.

use super::ALPHABET;

/// The first character of a UUID's key, which no other readable key contains.
pub(super) const UUID_MARKER: u8 = b'~';

/// The length of a UUID as text.
const TEXT_LEN: usize = 36;

/// The length of a UUID's key: the marker, and 22 characters of base64.
const STORED_LEN: usize = 23;

/// Whether the character at this index of a UUID's text is a hyphen.
const fn is_hyphen(index: usize) -> bool {
    matches!(index, 8 | 13 | 18 | 23)
}

/// The stored text of a UUID in canonical form, all in lower or all in upper case; `None` for other text.
///
/// The 128 bits are followed by four of which the last one says whether it is in upper case. Without letters it is in lower case.
pub(super) fn stored(text: &[u8]) -> Option<[u8; STORED_LEN]> {
    if text.len() != TEXT_LEN {
        return None;
    }
    let (mut bits, mut has_lower, mut has_upper) = (0u128, false, false);
    for (index, byte) in text.iter().enumerate() {
        let digit = match byte {
            b'-' if is_hyphen(index) => continue,
            _ if is_hyphen(index) => return None,
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => {
                has_lower = true;
                byte - b'a' + 10
            }
            b'A'..=b'F' => {
                has_upper = true;
                byte - b'A' + 10
            }
            _ => return None,
        };
        bits = bits << 4 | u128::from(digit);
    }
    if has_lower && has_upper {
        return None;
    }
    let mut stored = [UUID_MARKER; STORED_LEN];
    for (index, out) in stored[1..STORED_LEN - 1].iter_mut().enumerate() {
        *out = ALPHABET[(bits >> (122 - 6 * index) & 63) as usize];
    }
    stored[STORED_LEN - 1] = ALPHABET[(bits & 3) as usize * 16 + usize::from(has_upper)];
    Some(stored)
}

/// The text of a UUID whose [`stored`] text this is; `None` for any other text.
pub(super) fn text(key: &[u8]) -> Option<[u8; TEXT_LEN]> {
    let [UUID_MARKER, digits @ .., last] = key else {
        return None;
    };
    if key.len() != STORED_LEN {
        return None;
    }
    let mut bits = 0u128;
    for digit in digits {
        bits = bits << 6 | u128::from(value_of(*digit)?);
    }
    let last = value_of(*last)?;
    bits = bits << 2 | u128::from(last >> 4);
    let digits = match last & 15 {
        1 => b"0123456789ABCDEF",
        _ => b"0123456789abcdef",
    };
    let (mut text, mut shift) = ([b'-'; TEXT_LEN], 128);
    for (index, out) in text.iter_mut().enumerate() {
        if !is_hyphen(index) {
            shift -= 4;
            *out = digits[(bits >> shift & 15) as usize];
        }
    }
    // Other spare bits, or an upper case without letters.
    (stored(&text)? == *key).then_some(text)
}

/// The value of a character of [`ALPHABET`].
fn value_of(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}
