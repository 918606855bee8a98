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

#[cfg(test)]
mod tests {
    use std::fmt;

    use proptest::prelude::*;
    use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

    use super::*;

    /// The highest level that the levels of a text reach.
    fn level(text: &str) -> usize {
        let mut levels = Levels::default();
        let mut chars = text.chars().peekable();
        let mut most = 0;
        while let Some(char) = chars.next() {
            levels.read(char, chars.peek().copied());
            most = levels.max().max(most);
        }
        most
    }

    /// Counts how many arrays and tables are within each other, up to an error.
    struct Depth<'a> {
        depth: usize,
        most: &'a std::cell::Cell<usize>,
    }

    impl Depth<'_> {
        fn within(&self) -> Depth<'_> {
            let depth = self.depth + 1;
            self.most.set(depth.max(self.most.get()));
            Depth { depth, ..*self }
        }
    }

    impl<'de> DeserializeSeed<'de> for Depth<'_> {
        type Value = ();

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
            deserializer.deserialize_any(self)
        }
    }

    impl<'de> Visitor<'de> for Depth<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value")
        }

        fn visit_bool<E>(self, _: bool) -> Result<(), E> {
            Ok(())
        }

        fn visit_i64<E>(self, _: i64) -> Result<(), E> {
            Ok(())
        }

        fn visit_u64<E>(self, _: u64) -> Result<(), E> {
            Ok(())
        }

        fn visit_f64<E>(self, _: f64) -> Result<(), E> {
            Ok(())
        }

        fn visit_str<E>(self, _: &str) -> Result<(), E> {
            Ok(())
        }

        fn visit_unit<E>(self) -> Result<(), E> {
            Ok(())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
            while seq.next_element_seed(self.within())?.is_some() {}
            Ok(())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while map.next_key_seed(self.within())?.is_some() {
                map.next_value_seed(self.within())?;
            }
            Ok(())
        }

        fn visit_enum<A: serde::de::EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
            use serde::de::VariantAccess;
            let (_, value) = tagged.variant::<IgnoredAny>()?;
            value.newtype_variant_seed(self)
        }
    }

    /// The levels of flow collections that the parser finds in a text that is one.
    fn parsed(text: &str) -> usize {
        let most = std::cell::Cell::new(0);
        let depth = Depth {
            depth: 0,
            most: &most,
        };
        let _ = depth.deserialize(yaml_serde::Deserializer::from_str(text));
        most.get()
    }

    #[test]
    fn levels_are_those_of_brackets_that_open_collections() {
        for (text, expected) in [
            ("a: [1, {b: [2]}]", 3),
            ("a: [[1], [2], [3]]", 2),
            ("[it's, [a], 'it''s [[', \"\\\"[[\", a#b, # [[\n b]", 2),
            ("[a: 'x]', ['[', b:c, e]]", 2),
            ("[&a 'x]', *a , [*a]]", 2),
            ("[!<]]> a, !<a,'b> [c]]", 2),
            ("[\"a\":'[', ? 'b]' : [c]]", 2),
            ("# see [1], [2]\na: [3]", 1),
        ] {
            assert_eq!(level(text), expected, "{text}");
            assert!(parsed(text) >= 1, "{text}");
        }
    }

    #[test]
    fn deep_texts_and_many_directives_are_found_where_they_are() {
        let at = |line, column| Some(Position { line, column });
        assert_eq!(excess(&"[".repeat(64)), None);
        assert_eq!(excess(&format!("a:\n  {}", "[".repeat(65))), at(2, 67));
        assert_eq!(excess(&"{a: ".repeat(65)), at(1, 257));
        assert_eq!(excess(&"[],".repeat(65)), None);
        assert_eq!(excess(&"%TAG !a! b\n".repeat(64)), None);
        assert_eq!(excess(&"%TAG !a! b\n".repeat(65)), at(65, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn no_collection_is_deeper_than_the_level_that_is_found(
            parts in prop::collection::vec(
                prop_oneof![
                    3 => Just("["), 2 => Just("]"), 2 => Just("{"), 1 => Just("}"), 3 => Just(", "), 2 => Just(": "), 2 => Just("a"),
                    1 => Just("'"), 1 => Just("\""), 1 => Just("\\"), 1 => Just(" # "), 1 => Just("\n"), 1 => Just("? "), 1 => Just("?"),
                    1 => Just("&b "), 1 => Just("!c "), 1 => Just("!<]> "), 1 => Just("!"), 1 => Just("-"), 1 => Just(" "), 1 => Just(","),
                    1 => Just("'x]'"), 1 => Just("\"x]\""), 1 => Just("''"), 1 => Just(":"), 1 => Just("#"), 1 => Just("\r"),
                    1 => Just("\u{2028}"), 1 => Just("\t"),
                ],
                0..24,
            ),
        ) {
            // Inside of a collection each level is one of brackets, but for the pairs of an array, which are tables. The parser
            // takes a bracket behind a question mark for its empty key, so that the array does not end: its time depends on the
            // tokens' levels, not on these.
            let text = format!("[{}", parts.concat());
            let pairs = text.matches(':').count() + 2 * text.matches('?').count();
            prop_assert!(parsed(&text) <= level(&text) + pairs, "{text:?}: {} > {}", parsed(&text), level(&text));
        }
    }
}
