//! A document, and its blocks of code.

use std::{env, fmt, ops::Range};

use tollgate_tests::{prelude::*, repository};

use crate::printed::lists::{COMPARED_ELSEWHERE, NOT_COMPARED, rows};

/// If this variable is set, documents are written anew in place of a failure.
const WRITE: &str = "TOLLGATE_WRITE_PRINTED";

/// A block between fences. Its text ends with a line break.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) language: String,
    pub(crate) text: String,
    /// The heading of level 2 before it.
    pub(crate) section: String,
    range: Range<usize>,
}

/// A document whose blocks are taken in their order.
pub(crate) struct Page {
    name: String,
    text: String,
    blocks: Vec<Block>,
    taken: usize,
    differing: Vec<(Block, String)>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Page {
    /// A document, by its path in the project.
    pub(crate) fn open(name: &str) -> Self {
        let text = fs::read_to_string(repository(name)).expect(name);
        Self {
            blocks: blocks(&text),
            name: name.to_owned(),
            text,
            taken: 0,
            differing: Vec::new(),
        }
    }

    pub(crate) fn has(&self, is_it: impl FnMut(&Block) -> bool) -> bool {
        self.blocks.iter().any(is_it)
    }

    /// Takes the next block that is neither Rust, which documentation tests run, nor commands without output, nor listed.
    pub(crate) fn next(&mut self) -> Option<Block> {
        while let Some(block) = self.blocks.get(self.taken) {
            self.taken += 1;
            let is_code = block.language.starts_with("rust") || block.language == "sh";
            if !is_code && !self.is_listed(block) {
                return Some(block.clone());
            }
        }
        None
    }

    /// Takes the next block, which is in this language.
    #[track_caller]
    pub(crate) fn expect(&mut self, language: &str) -> Block {
        let block = self.next().expect("a further block");
        let line = block.line;
        assert_eq!(block.language, language, "{}:{line}", self.name);
        block
    }

    fn is_listed(&self, block: &Block) -> bool {
        let elsewhere = rows(COMPARED_ELSEWHERE)
            .any(|[page, language, _]| page == self.name && language == block.language);
        let first = block.text.lines().next().unwrap_or_default();
        let listed = rows(NOT_COMPARED).any(|[page, line, _]| page == self.name && line == first);
        elsewhere || listed
    }

    /// Compares a block with what was printed, but for blanks at the ends of lines.
    pub(crate) fn compare(&mut self, block: &Block, printed: &str) {
        let lines = printed.trim_end().lines();
        let printed: String = lines.map(|line| format!("{}\n", line.trim_end())).collect();
        if printed != block.text {
            self.differing.push((block.clone(), printed));
        }
    }

    /// Compares a file of the project with what was written.
    pub(crate) fn compare_file(&self, path: &str, written: &str) {
        let path = repository(path);
        if env::var_os(WRITE).is_some() {
            fs::write(path, written).expect("the file can be written");
            return;
        }
        let ours = fs::read_to_string(&path).expect("a file");
        assert!(
            ours == written,
            "{} differs; {WRITE}=1 writes it anew",
            path.display()
        );
    }

    /// Fails if a block differs, or was not taken. Writes the document anew instead, if that is asked for.
    pub(crate) fn finish(mut self) {
        if let Some(left) = self.next() {
            let Block { line, language, .. } = left;
            panic!(
                "{}:{line}: no test compares this block of {language}",
                self.name
            );
        }
        if self.differing.is_empty() {
            return;
        }
        if env::var_os(WRITE).is_some() {
            for (block, printed) in self.differing.iter().rev() {
                self.text.replace_range(block.range.clone(), printed);
            }
            fs::write(repository(&self.name), &self.text).expect("the document can be written");
            return;
        }
        let differences: Vec<_> = self.differing.iter().map(difference).collect();
        panic!(
            "{} does not have what is printed; {WRITE}=1 writes it anew:\n{}",
            self.name,
            differences.join("\n")
        );
    }
}

/// The lines of a block that are only in the document (`-`), or only printed (`+`).
fn difference((block, printed): &(Block, String)) -> String {
    let lines = |text: &str, other: &str, sign| -> String {
        let other: Vec<&str> = other.lines().collect();
        let only = text.lines().filter(|line| !other.contains(line));
        only.map(|line| format!("{sign} {line}\n")).collect()
    };
    format!(
        "line {}:\n{}{}",
        block.line,
        lines(&block.text, printed, '-'),
        lines(printed, &block.text, '+')
    )
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut section = String::new();
    let mut at = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let end = at + line.len();
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block {
                    line: index + 1,
                    language: language.trim().to_owned(),
                    text: String::new(),
                    section: section.clone(),
                    range: end..end,
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.range.end = end;
            }
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    section = heading.trim().to_owned();
                }
            }
        }
        at = end;
    }
    assert!(open.is_none(), "a block without an end");
    blocks
}
