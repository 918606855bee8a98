//! A bound of TOML text before it is parsed.

use toml_parser::{Source, lexer::TokenKind};

use super::bounds::MAX_DEPTH;

/// Where the text has a value within more than [`MAX_DEPTH`] arrays and tables, apart from the table of the header above it. Each
/// dot of a key is a table: the parser bounds the dots of one key, and not those of inline tables within each other, and drops
/// what it has read by recursion.
///
/// The tokens are those of the parser, since it goes on after errors. A value follows its key after line breaks too, and after
/// other tokens that are errors, so that each value is taken for one of the key with the most dots before it.
pub(super) fn excess(text: &str) -> Option<usize> {
    deeper_than(MAX_DEPTH, text)
}

fn deeper_than(max: usize, text: &str) -> Option<usize> {
    // Each array or inline table that is open, with the level and the dots before it.
    let mut open: Vec<(TokenKind, usize, usize)> = Vec::new();
    let (mut level, mut dots, mut most_dots) = (0, 0, 0);
    for token in Source::new(text).lex() {
        let kind = token.kind();
        match kind {
            TokenKind::Dot => {
                dots += 1;
                most_dots = dots.max(most_dots);
            }
            TokenKind::Atom
            | TokenKind::BasicString
            | TokenKind::LiteralString
            | TokenKind::MlBasicString
            | TokenKind::MlLiteralString
            | TokenKind::Whitespace => {}
            _ => dots = 0,
        }
        match kind {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                open.push((kind, level, most_dots));
                level += 1 + most_dots;
                most_dots = 0;
            }
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                if let Some((_, before, dots)) = open.pop_if(|(open, ..)| closes(*open, kind)) {
                    (level, most_dots) = (before, dots);
                }
            }
            TokenKind::Newline if open.is_empty() => most_dots = 0,
            _ => {}
        }
        if level + most_dots > max {
            return Some(token.span().start());
        }
    }
    None
}

fn closes(open: TokenKind, close: TokenKind) -> bool {
    match open {
        TokenKind::LeftSquareBracket => close == TokenKind::RightSquareBracket,
        _ => close == TokenKind::RightCurlyBracket,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toml::de::{DeTable, DeValue};

    use super::*;

    /// The highest level of a text.
    fn level(text: &str) -> usize {
        let mut levels = 0..;
        let highest = levels.find(|max| deeper_than(*max, text).is_none());
        highest.expect("a level")
    }

    /// How many arrays and tables a value is within at most.
    fn depth(value: &DeValue<'_>) -> usize {
        let within: Box<dyn Iterator<Item = _>> = match value {
            DeValue::Array(values) => Box::new(values.iter()),
            DeValue::Table(table) => Box::new(table.values()),
            _ => return 0,
        };
        1 + within
            .map(|value| depth(value.get_ref()))
            .max()
            .unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn no_value_is_deeper_than_the_level_that_is_found(
            parts in prop::collection::vec(
                prop_oneof![
                    3 => Just("["), 2 => Just("]"), 3 => Just("{"), 1 => Just("}"), 2 => Just(","), 4 => Just("="), 3 => Just("a.b.c"),
                    3 => Just("a"), 2 => Just("."), 1 => Just("'"), 1 => Just("\""), 1 => Just("'''"), 1 => Just("\"\"\""),
                    1 => Just("\\"), 1 => Just("#"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just(" "), 1 => Just("'[.'"),
                    1 => Just("{a.b="),
                ],
                0..24,
            ),
        ) {
            let text = format!("x = {}", parts.concat());
            // Each header is a key of its own.
            let is_header = |line: &str| line.trim_start().starts_with('[');
            prop_assume!(!text.split(['\n', '\r']).any(is_header));
            let (table, _) = DeTable::parse_recoverable(&text);
            let depth = depth(&DeValue::Table(table.into_inner()));
            // The document is a table itself, and a bracket that only closes is an empty array or table.
            let most = level(&text) + 2;
            prop_assert!(depth <= most, "{text:?}: {depth} > {most}");
        }
    }

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
            // The parser goes on after each of these.
            ("'''a'''' ".to_owned() + &"[".repeat(65), Some(73)),
            ("\"\"\"a\"\"\"\" ".to_owned() + &"[".repeat(65), Some(73)),
            ("\"\\\n".to_owned() + &"[".repeat(65), Some(67)),
            ("#\r".to_owned() + &"[".repeat(65), Some(66)),
            ("a' ".to_owned() + &"[".repeat(65), Some(67)),
            ("{a.a.a\n=[".repeat(17), Some(16 * 9)),
            ("{a.a.a=,[".repeat(17), Some(16 * 9)),
            ("{a.a.a]=[".repeat(17), Some(16 * 9)),
        ] {
            assert_eq!(excess(&text), expected, "{text}");
        }
    }
}
