//! A bound of YAML text before it is parsed.

use super::bounds::MAX_DEPTH;
use crate::config::error::Position;

/// The most lines that begin with a `%`, as directives do.
const MAX_DIRECTIVES: usize = 64;

/// Where the text has collections in `[]` and `{}` within more than [`MAX_DEPTH`] others, or more directives than any document
/// needs: the parser's time grows with the product of the tokens and either number.
///
/// Outside of such a collection it takes indentation to tell a bracket that opens one from a text's. There each bracket is taken
/// for either: the level that is found is the parser's or a higher one. It is a higher one by as many brackets as are never
/// closed in the comments and texts of a document.
pub(super) fn excess(text: &str) -> Option<Position> {
    let mut levels = Levels::default();
    let (mut line, mut column, mut directives) = (1, 0, 0);
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        column += 1;
        if char == '%' && column == 1 {
            directives += 1;
        }
        levels.read(char, chars.peek().copied());
        if levels.max() > MAX_DEPTH || directives > MAX_DIRECTIVES {
            return Some(Position { line, column });
        }
        if is_break(char) && !(char == '\r' && chars.peek() == Some(&'\n')) {
            (line, column) = (line + 1, 0);
        }
    }
    None
}

/// The highest level at which the parser may be within each kind of token; zero if it can't be within one.
#[derive(Clone, Copy, Default)]
struct Levels {
    between: usize,
    plain: usize,
    /// After white space in plain text, which may go on.
    after_plain: usize,
    single_quoted: usize,
    double_quoted: usize,
    escape: usize,
    comment: usize,
    /// An anchor or an alias.
    anchor: usize,
    tag: usize,
}

impl Levels {
    fn max(&self) -> usize {
        let texts = self.plain.max(self.after_plain).max(self.single_quoted);
        self.between.max(texts).max(self.double_quoted)
    }

    fn read(&mut self, char: char, next: Option<char>) {
        let old = *self;
        let mut new = Self::default();
        let raise = |state: &mut usize, level: usize| *state = level.max(*state);
        let is_white = is_white(char);

        // Outside of all collections, too.
        if matches!(char, '[' | '{') {
            new.between = 1;
        }
        if old.between > 0 {
            let level = old.between;
            match char {
                '[' | '{' => raise(&mut new.between, level + 1),
                ']' | '}' => raise(&mut new.between, level - 1),
                '\'' => raise(&mut new.single_quoted, level),
                '"' => raise(&mut new.double_quoted, level),
                '#' => raise(&mut new.comment, level),
                '&' | '*' => raise(&mut new.anchor, level),
                '!' => raise(&mut new.tag, level),
                ',' | '?' | ':' => raise(&mut new.between, level),
                _ if is_white => raise(&mut new.between, level),
                _ => raise(&mut new.plain, level),
            }
        }
        for (level, is_after) in [(old.plain, false), (old.after_plain, true)] {
            if level == 0 {
                continue;
            }
            let ends = next.is_none_or(|next| self::is_white(next) || ",?[]{}".contains(next));
            match char {
                '[' | '{' => raise(&mut new.between, level + 1),
                ']' | '}' => raise(&mut new.between, level - 1),
                ',' => raise(&mut new.between, level),
                ':' if ends => raise(&mut new.between, level),
                '#' if is_after => raise(&mut new.comment, level),
                _ if is_white => raise(&mut new.after_plain, level),
                _ => raise(&mut new.plain, level),
            }
        }
        if old.single_quoted > 0 {
            match char {
                '\'' => raise(&mut new.between, old.single_quoted),
                _ => raise(&mut new.single_quoted, old.single_quoted),
            }
        }
        if old.double_quoted > 0 {
            match char {
                '"' => raise(&mut new.between, old.double_quoted),
                '\\' => raise(&mut new.escape, old.double_quoted),
                _ => raise(&mut new.double_quoted, old.double_quoted),
            }
        }
        if old.escape > 0 {
            raise(&mut new.double_quoted, old.escape);
        }
        if old.comment > 0 {
            match is_break(char) {
                true => raise(&mut new.between, old.comment),
                false => raise(&mut new.comment, old.comment),
            }
        }
        if old.anchor > 0 {
            match char {
                ']' | '}' => raise(&mut new.between, old.anchor - 1),
                ',' | ':' | '?' => raise(&mut new.between, old.anchor),
                _ if is_white => raise(&mut new.between, old.anchor),
                _ => raise(&mut new.anchor, old.anchor),
            }
        }
        if old.tag > 0 {
            // A comma ends a tag unless it is in angle brackets.
            if char == ',' || is_white {
                raise(&mut new.between, old.tag);
            }
            if !is_white {
                raise(&mut new.tag, old.tag);
            }
        }
        *self = new;
    }
}

fn is_break(char: char) -> bool {
    matches!(char, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_white(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\0') || is_break(char)
}
