//! The text in a file that people read: comments, messages, the names of functions.

use std::mem;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    Lua,
    Markdown,
}

impl Language {
    pub(super) fn of(file: &str) -> Option<Self> {
        match file.rsplit_once('.')?.1 {
            "rs" => Some(Self::Rust),
            "lua" => Some(Self::Lua),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// Words that belong together: comments on consecutive lines, a message, a document.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) words: Vec<Word>,
    /// Whether it is documentation rather than a comment or a message.
    pub(super) guide: bool,
}

#[derive(Debug)]
pub(super) struct Word {
    lowercase: String,
    pub(super) line: usize,
    /// Whether a mark follows, or nothing.
    pub(super) ends_clause: bool,
}

impl Block {
    /// Whether the words of a phrase stand together from `start` on.
    pub(super) fn has(&self, start: usize, phrase: &str) -> bool {
        let mut words = self.words[start..].iter();
        let mut together = true;
        phrase.split(' ').all(|part| {
            words.next().is_some_and(|word| {
                let found = together && word.lowercase == part;
                together = !word.ends_clause;
                found
            })
        })
    }

    fn add(&mut self, text: &str, first_line: usize) {
        for (line, text) in (first_line..).zip(text.split('\n')) {
            let mut word = String::new();
            for c in text.chars().chain([' ']) {
                if c.is_alphanumeric() {
                    word.extend(c.to_lowercase());
                    continue;
                }
                let lowercase = mem::take(&mut word);
                if !lowercase.is_empty() {
                    self.words.push(Word {
                        lowercase,
                        line,
                        ends_clause: false,
                    });
                }
                let is_mark = !c.is_whitespace() && !"_'*`/".contains(c);
                if let Some(last) = self.words.last_mut() {
                    last.ends_clause |= is_mark;
                }
            }
        }
    }
}

pub(super) fn blocks(text: &str, language: Language) -> Vec<Block> {
    let mut reader = Reader {
        rest: text,
        line: 1,
        blocks: Vec::new(),
        open: None,
    };
    match language {
        Language::Markdown => reader.add(text, true),
        Language::Lua => reader.read_lua(),
        Language::Rust => reader.read_rust(),
    }
    let mut blocks = reader.blocks;
    for block in &mut blocks {
        if let Some(last) = block.words.last_mut() {
            last.ends_clause = true;
        }
    }
    blocks
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    blocks: Vec<Block>,
    /// The line and the kind of the last comment, which another on the next line carries on.
    open: Option<(usize, bool)>,
}

impl<'a> Reader<'a> {
    fn read_rust(&mut self) {
        let mut before = ' ';
        while let Some(c) = self.rest.chars().next() {
            let word_before = before.is_alphanumeric() || before == '_';
            let raw = self.rest.trim_start_matches(['b', 'c']).strip_prefix('r');
            let raw = raw.filter(|raw| raw.trim_start_matches('#').starts_with('"'));
            if self.rest.starts_with("//") {
                self.line_comment("//");
            } else if let Some(text) = self.rest.strip_prefix("/*") {
                let end = text.find("*/").unwrap_or(text.len());
                self.add(&text[..end], false);
                self.skip((end + 4).min(self.rest.len()));
            } else if let Some(raw) = raw.filter(|_| !word_before) {
                let start = self.rest.len() - raw.len();
                let hashes = raw.len() - raw.trim_start_matches('#').len();
                let close = format!("\"{}", "#".repeat(hashes));
                let text = &raw[hashes + 1..];
                let end = text.find(&close).unwrap_or(text.len());
                self.add(&text[..end], false);
                self.skip((start + hashes + 1 + end + close.len()).min(self.rest.len()));
            } else if c == '"' {
                self.quoted('"', true);
            } else if c == '\'' {
                self.character();
            } else if let Some(name) = self.rest.strip_prefix("fn ").filter(|_| !word_before) {
                let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
                self.add(&name[..end.unwrap_or(name.len())].replace('_', " "), false);
                self.skip(3);
            } else {
                self.skip(c.len_utf8());
            }
            before = c;
        }
    }

    fn read_lua(&mut self) {
        while let Some(c) = self.rest.chars().next() {
            if self.rest.starts_with("--") {
                self.line_comment("--");
            } else if c == '"' || c == '\'' {
                self.quoted(c, false);
            } else {
                self.skip(c.len_utf8());
            }
        }
    }

    fn line_comment(&mut self, mark: &str) {
        let text = self.rest.lines().next().unwrap_or_default();
        let (text, end) = (&text[mark.len()..], text.len());
        let doc = mark == "//" && text.starts_with(['/', '!']);
        let line = self.line;
        let carries_on = line
            .checked_sub(1)
            .is_some_and(|before| self.open == Some((before, doc)));
        match self.blocks.last_mut().filter(|_| carries_on) {
            Some(block) => block.add(text, line),
            None => self.add(text, doc),
        }
        self.open = Some((line, doc));
        self.skip(end);
    }

    fn quoted(&mut self, mark: char, message: bool) {
        let mut escaped = false;
        let end = self.rest[1..].find(|c| {
            let ends = c == mark && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let end = end.map_or(self.rest.len(), |end| end + 1);
        let text = &self.rest[1..end];
        // A single word is a name or data.
        if message && text.contains(' ') {
            self.add(text, false);
        }
        self.skip((end + 1).min(self.rest.len()));
    }

    /// Skips a character literal, or the mark of a lifetime.
    fn character(&mut self) {
        let mut inside = self.rest[1..].chars();
        let literal = match inside.next() {
            Some('\\') => self.rest[3..].find('\'').map(|end| end + 4),
            Some(c) if inside.next() == Some('\'') => Some(c.len_utf8() + 2),
            _ => None,
        };
        self.skip(literal.unwrap_or(1));
    }

    fn add(&mut self, text: &str, guide: bool) {
        let mut block = Block {
            guide,
            ..Block::default()
        };
        block.add(text, self.line);
        self.blocks.push(block);
        self.open = None;
    }

    fn skip(&mut self, bytes: usize) {
        let (skipped, rest): (&'a str, &'a str) = self.rest.split_at(bytes);
        self.line += skipped.matches('\n').count();
        self.rest = rest;
    }
}
