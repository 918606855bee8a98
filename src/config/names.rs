//! The names that texts of a document may have, and mistakes in them.

use crate::{
    error::{InvalidValue, Reference},
    extract::{built_in as keys, text::is_plain},
};

/// The texts of the keys that need no registration.
pub(crate) fn built_in_keys() -> [&'static str; keys::BUILT_IN.len()] {
    keys::BUILT_IN.map(|(text, _)| text)
}

/// The texts of the strategies that need no registration.
pub(crate) use crate::strategy::built_in::texts as built_in_strategies;

/// Whether code can be registered under this name.
pub(crate) fn is_name(name: &str) -> bool {
    is_plain(name) && name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// The first word of a built-in's text, without the name or the texts that follow: `header` of `header:NAME`.
pub(crate) fn first_word(text: &str) -> &str {
    text.split([':', '(', ' ']).next().unwrap_or(text)
}

/// The mistake of a name that is neither a built-in's nor registered: it names the nearest one, and lists all.
pub(crate) fn unknown<'a>(
    kind: &'static str,
    name: &str,
    built_in: &[&'a str],
    registered: impl Iterator<Item = &'a str>,
) -> InvalidValue {
    let names: Vec<_> = built_in.iter().copied().chain(registered).collect();
    let list = names.join(", ");
    let expected = match nearest(name, &names) {
        _ if names.is_empty() => {
            format!("a registered name; the `Registry` has no {kind}")
        }
        Some(nearest) if names.len() == 1 => format!("{nearest:?}"),
        Some(nearest) => format!("{nearest:?}, or another of {list}"),
        None => format!("one of {list}"),
    };
    let unknown = InvalidValue::new(format!("an unknown {kind} {name:?}"), expected);
    if !is_name(name) {
        return unknown;
    }
    let name = name.to_owned();
    unknown.unresolved(Reference::Code { kind, name })
}

/// The name that `text` was probably meant to be.
pub(crate) fn nearest<'a>(text: &str, names: &[&'a str]) -> Option<&'a str> {
    let text = first_word(text);
    let text = text.to_ascii_lowercase().replace('-', "_");
    let head = first_word;
    let contains = |name: &str| text.len() >= 2 && name.split('_').any(|word| word == text);
    let distance = |name: &'a str| match contains(head(name)) {
        true => 0,
        false => edits(&text, head(name)),
    };
    let most = (text.chars().count() / 3).max(1);
    let near = names.iter().map(|name| (distance(name), *name));
    let near = near.filter(|(distance, _)| *distance <= most);
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The number of characters that have to be inserted, removed or replaced to make `b` of `a`.
pub(super) fn edits(a: &str, b: &str) -> usize {
    let b: Vec<_> = b.chars().take(64).collect();
    let mut row: Vec<_> = (0..=b.len()).collect();
    for (index, of_a) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (index, of_b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(of_a != *of_b);
            diagonal = row[index + 1];
            row[index + 1] = replaced.min(diagonal + 1).min(row[index] + 1);
        }
    }
    row[b.len()]
}
