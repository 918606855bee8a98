//! The words and signs of a text: of a key such as `header:x-api-key | peer`, or a strategy such as `sliding_window buckets 10`.

use std::{
    fmt,
    str::{CharIndices, FromStr},
    time::Duration,
};

use crate::{error::InvalidValue, quota::DurationText};

/// A word or a sign of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Word(&'a str),
    /// A name in quotes, and what stands directly before it: `header:` of `header:"a|b"`.
    Quoted(&'a str, String),
    /// One of `|()[],`.
    Sign(char),
    End,
}

/// Text, token by token.
pub(crate) struct Scanner<'a> {
    /// What the text is of, for mistakes: `key`.
    kind: &'static str,
    text: &'a str,
    rest: CharIndices<'a>,
    /// The next token, and where it begins.
    next: (usize, Token<'a>),
}

const SIGNS: [char; 6] = ['|', '(', ')', '[', ']', ','];

impl<'a> Scanner<'a> {
    pub(crate) fn new(kind: &'static str, text: &'a str) -> Self {
        let mut scanner = Self {
            kind,
            text,
            rest: text.char_indices(),
            next: (0, Token::End),
        };
        scanner.advance();
        scanner
    }

    pub(crate) fn peek(&self) -> &Token<'a> {
        &self.next.1
    }

    /// The next token, if it is a word.
    pub(crate) fn peek_word(&self) -> Option<&'a str> {
        match self.next.1 {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }

    /// Takes the next token.
    pub(crate) fn take(&mut self) -> Token<'a> {
        let token = self.next.1.clone();
        self.advance();
        token
    }

    /// Takes the next token if it is this sign.
    pub(crate) fn take_sign(&mut self, sign: char) -> bool {
        let is_it = self.next.1 == Token::Sign(sign);
        if is_it {
            self.advance();
        }
        is_it
    }

    /// Takes the next token if it is this word.
    pub(crate) fn take_word(&mut self, word: &str) -> bool {
        let is_it = self.peek_word() == Some(word);
        if is_it {
            self.advance();
        }
        is_it
    }

    /// Whether the next token is this sign, followed by a word for which `fits` is true.
    pub(crate) fn take_sign_before(&mut self, sign: char, fits: impl Fn(&str) -> bool) -> bool {
        let before = (self.rest.clone(), self.next.clone());
        if self.take_sign(sign) && self.peek_word().is_some_and(fits) {
            return true;
        }
        (self.rest, self.next) = before;
        false
    }

    /// Takes a number, such as that of the example.
    pub(crate) fn take_number<T: FromStr>(&mut self, example: &str) -> Result<T, InvalidValue> {
        let number = self.peek_word().and_then(|word| word.parse().ok());
        let Some(number) = number else {
            return Err(self.unexpected(&format!("a number, such as {example}")));
        };
        self.advance();
        Ok(number)
    }

    /// Takes a word, such as that of the example.
    pub(crate) fn take_text(&mut self, example: &str) -> Result<String, InvalidValue> {
        let Some(word) = self.peek_word() else {
            return Err(self.unexpected(&format!("a text, such as {example}")));
        };
        self.advance();
        Ok(word.to_owned())
    }

    /// Takes a duration, such as that of the example.
    pub(crate) fn take_duration(&mut self, example: &str) -> Result<Duration, InvalidValue> {
        let Some(text) = self.peek_word() else {
            return Err(self.unexpected(&format!("a duration, such as {example}")));
        };
        let duration = text.parse().map_err(|problem| {
            InvalidValue::new(
                format!("the duration {text:?}: {problem}"),
                "a duration such as \"50ms\", \"2s\", \"10min\" or \"1day\"",
            )
        });
        let DurationText(duration) = duration?;
        self.advance();
        Ok(duration)
    }

    /// The mistake that the next token is.
    pub(crate) fn unexpected(&self, expected: &str) -> InvalidValue {
        let value = format!("{} in the {} {:?}", self.peek(), self.kind, self.text);
        InvalidValue::new(value, expected)
    }

    fn advance(&mut self) {
        let mut start = self.rest.clone();
        while let Some((_, char)) = self.rest.next() {
            if !char.is_whitespace() {
                break;
            }
            start = self.rest.clone();
        }
        self.rest = start;
        let at = self.rest.offset();
        let token = match self.rest.clone().next() {
            None => Token::End,
            Some((_, sign)) if SIGNS.contains(&sign) => {
                self.rest.next();
                Token::Sign(sign)
            }
            Some(_) => self.word(at),
        };
        self.next = (at, token);
    }

    /// A word, or a name in quotes.
    fn word(&mut self, at: usize) -> Token<'a> {
        let ends = |char: char| char.is_whitespace() || SIGNS.contains(&char);
        while let Some((end, char)) = self.rest.clone().next() {
            if char == '"' {
                self.rest.next();
                let before = self.text.get(at..end).unwrap_or_default();
                return match self.quoted() {
                    Some(name) => Token::Quoted(before, name),
                    // A quote without an end is no name: the whole rest is one unknown word.
                    None => Token::Word(self.text.get(at..).unwrap_or_default()),
                };
            }
            if ends(char) {
                break;
            }
            self.rest.next();
        }
        Token::Word(self.text.get(at..self.rest.offset()).unwrap_or_default())
    }

    /// The name up to a closing quote; `None` if there is none.
    fn quoted(&mut self) -> Option<String> {
        let mut name = String::new();
        loop {
            match self.rest.next()?.1 {
                '"' => return Some(name),
                '\\' => name.push(self.rest.next()?.1),
                char => name.push(char),
            }
        }
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "{word:?}"),
            Self::Quoted(before, name) => write!(f, "{:?}", format!("{before}\"{name}\"")),
            Self::Sign(sign) => write!(f, "\"{sign}\""),
            Self::End => f.write_str("the end"),
        }
    }
}
