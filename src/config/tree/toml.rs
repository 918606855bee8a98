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
