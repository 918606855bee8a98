//! A bound of TOML text before it is parsed.

use super::bounds::MAX_DEPTH;

/// Where the text has a value within more than [`MAX_DEPTH`] arrays and tables, apart from the table of the header above it. Each
/// dot of a key is a table: the parser bounds the dots of one key, and not those of inline tables within each other, and drops
/// what it has read by recursion.
pub(super) fn excess(text: &str) -> Option<usize> {
    // Each array or inline table that is open, with the level before it.
    let mut open: Vec<(u8, usize)> = Vec::new();
    let (mut level, mut dots) = (0, 0);
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'#' => at = end_of_line(bytes, at),
            b'"' | b'\'' => at = end_of_string(bytes, at),
            b'.' => dots += 1,
            b',' | b'\n' => dots = 0,
            b'[' | b'{' => {
                open.push((*byte, level));
                level += 1 + dots;
                dots = 0;
            }
            b']' | b'}' => {
                // The brackets of a pair differ by two.
                if let Some((_, before)) = open.pop_if(|(open, _)| *open + 2 == *byte) {
                    level = before;
                }
                dots = 0;
            }
            _ => {}
        }
        if level + dots > MAX_DEPTH {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The last byte of the string that begins at `at`.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let of_lines = [quote; 3];
    let (begin, ends): (_, &[u8]) = match bytes[at..].starts_with(&of_lines) {
        true => (at + 3, &of_lines),
        // A string in one line ends with it.
        false => (at + 1, &[quote]),
    };
    let mut at = begin;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if quote == b'"' => at += 1,
            b'\n' if ends.len() == 1 => return at - 1,
            _ if bytes[at..].starts_with(ends) => return at + ends.len() - 1,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// The last byte of the line of `at`, without its break.
fn end_of_line(bytes: &[u8], at: usize) -> usize {
    let rest = bytes[at..].iter().take_while(|byte| **byte != b'\n');
    at + rest.count() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_brackets_and_of_dots_in_keys() {
        for (text, expected) in [
            ("[".repeat(64), None),
            ("[".repeat(65), Some(64)),
            (format!("a = {}", "[{a=".repeat(32)), None),
            (format!("a = {}", "{a.a.a=[".repeat(17)), Some(4 + 16 * 8)),
            (format!("{}a = 1", "a.".repeat(65)), Some(129)),
            ("[],{},".repeat(65), None),
            (
                "a = [1.5, 'a.[[[', \"\\\"[[\", '''[\n[''' ] # [[[\n".repeat(65),
                None,
            ),
            ("a = '[\na = \"\\\n".repeat(65), None),
            ("[}".repeat(65), Some(128)),
            ("'''".to_owned() + &"[".repeat(65), None),
        ] {
            assert_eq!(excess(&text), expected, "{text}");
        }
    }
}
