//! Words that the project's text does without: what acts in it are requests, callers, clients
//! and tasks, in present-day English.

mod text;

use std::path::Path;

use self::text::{Block, Language};
use crate::baseline::{self, Counts};
use crate::run::{Outcome, capture, grep, line};

/// How many of the words each file had when the check was written.
const KNOWN: &str = "xtask/baseline/words.txt";

/// Where the words are named.
const OWN: &str = "xtask/src/words/";

/// Words and phrases that are ruled out everywhere.
const RULED_OUT: [&str; 20] = [
    "whoever",
    "whomever",
    "whom",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "he",
    "him",
    "himself",
    "his",
    "told",
    "all the same",
    "be it",
    "had better",
    "for want of",
    "in vain",
    "at fault",
    "let off",
    "ought",
];

/// What things were called before they had their names in the glossary. The changelog lists both.
const OLD_NAMES: [&str; 12] = [
    "asker", "denial", "denials", "judge", "judged", "judges", "judging", "refusal", "refusals",
    "refuse", "refuses", "unsaid",
];

/// Where the old names are listed.
const CHANGELOG: &str = "CHANGELOG.md";

/// Ruled out in comments and messages; guides and the documentation of items may be about people.
const NOT_OF_CODE: &str = "who";

/// Ruled out at the end of a clause alone: `of late requests` is plain English.
const AT_AN_END: &str = "of late";

/// Fails on a file with more of the words than it had, and on one that has fewer by now.
pub(crate) fn check(root: &Path) -> Outcome {
    baseline::compare(root, KNOWN, 0, &count(root)?)
}

/// Takes off the list what is gone.
pub(crate) fn shorten(root: &Path) -> Outcome {
    baseline::shorten(root, KNOWN, &count(root)?)
}

/// Prints every ruled-out word, and counts those of each file.
fn count(root: &Path) -> Outcome<Counts> {
    let mut grep = grep(root);
    grep.args(["-l", "-e", "", "--", "*.rs", "*.lua", "*.md"]);
    let (files, code) = capture(&mut grep)?;
    if code != Some(0) {
        return Err(format!("`{}` failed", line(&grep)));
    }
    let mut counts = Counts::new();
    for file in files.lines().filter(|file| !file.starts_with(OWN)) {
        let Some(language) = Language::of(file) else {
            continue;
        };
        let text =
            std::fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
        let found = find(&text::blocks(&text, language), file == CHANGELOG);
        for (line, word) in &found {
            println!("{file}:{line}: {word}");
        }
        if !found.is_empty() {
            counts.insert(file.to_owned(), found.len());
        }
    }
    Ok(counts)
}

/// Every ruled-out word, and the line it is on. Old names may be listed in the changelog.
fn find(blocks: &[Block], lists_old_names: bool) -> Vec<(usize, &'static str)> {
    let old_names = if lists_old_names { &[][..] } else { &OLD_NAMES };
    let mut found = Vec::new();
    for block in blocks {
        for start in 0..block.words.len() {
            let stands = |phrase: &'static str| block.has(start, phrase).then_some(phrase);
            let mut ruled_out = RULED_OUT.iter().chain(old_names);
            let word = ruled_out.find_map(|phrase| stands(phrase));
            let word = word.or_else(|| stands(NOT_OF_CODE).filter(|_| !block.guide));
            let ends = || {
                block
                    .words
                    .get(start + 1)
                    .is_some_and(|word| word.ends_clause)
            };
            let word = word.or_else(|| stands(AT_AN_END).filter(|_| ends()));
            found.extend(word.map(|word| (block.words[start].line, word)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, language: Language) -> Vec<&'static str> {
        let found = find(&text::blocks(text, language), false);
        found.into_iter().map(|(_, word)| word).collect()
    }

    #[test]
    fn ruled_out_words_are_found_in_any_case_and_across_lines() {
        for (text, word) in [
            ("// Whoever waits", "whoever"),
            ("/// and told, it", "told"),
            ("/* of whom */", "whom"),
            ("//! He's first", "he"),
            ("let x = 1; // his", "his"),
            ("// It is all the\n    // same here", "all the same"),
            ("// for want\n// of a key", "for want of"),
            ("// as of late", "of late"),
            ("// as of late, it", "of late"),
            ("// requests who wait", "who"),
            ("println!(\"nobody is there\");", "nobody"),
            ("println!(r#\"\"in vain\"\"#);", "in vain"),
            ("fn nobody_waits() {}", "nobody"),
            ("// The store is\n// at fault", "at fault"),
            ("/// Callers that are let off", "let off"),
            ("// It ought to be", "ought"),
            ("// requests that were judged", "judged"),
        ] {
            assert_eq!(words(text, Language::Rust), [word], "{text}");
        }
        assert_eq!(words("x = 1 -- be it so", Language::Lua), ["be it"]);
        assert_eq!(
            words("You *had\nbetter* ask", Language::Markdown),
            ["had better"]
        );
    }

    #[test]
    fn plain_words_and_code_are_left_alone() {
        for text in [
            "// the, this, then, here, whole, history, that of later requests",
            "// a number of late replies",
            "// all of the same kind",
            "// it may be. It is",
            "/// Callers who are exempt",
            "let his = told(whom);",
            "let off = !on;",
            "let key = \"who\";",
            "let c = '\"'; told(&'\\'', b'\"');",
            "fn f<'he>(x: &'he str) {}",
            "const URL: &str = \"a//b\"; his",
        ] {
            assert_eq!(words(text, Language::Rust), [""; 0], "{text}");
        }
        assert_eq!(words("local told = 'a--his'", Language::Lua), [""; 0]);
        assert_eq!(words("Those who pay", Language::Markdown), [""; 0]);
    }

    #[test]
    fn old_names_stand_in_the_changelog_alone() {
        let text = "| `Policy::refuse` | `reject` |";
        let blocks = text::blocks(text, Language::Markdown);
        assert_eq!(find(&blocks, false), [(1, "refuse")]);
        assert_eq!(find(&blocks, true), []);
    }

    #[test]
    fn a_word_is_found_on_its_line() {
        let text = "/// One.\n\nfn f() {\n    // two\n    // told\n    \"a b\nhis\"\n}\n";
        let found = find(&text::blocks(text, Language::Rust), false);
        assert_eq!(found, [(5, "told"), (7, "his")]);
    }
}
