//! The descriptions in the JSON Schema, which are the documentation of fields.

use serde_json::Value;

/// Removes the links of Rust's documentation from descriptions, and their line breaks.
pub(super) fn without_links(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => *text = plain(text),
                    value => without_links(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(without_links),
        _ => {}
    }
}

/// Text without the targets of its links: `[text](target)` and `[text]` are `text`.
fn plain(text: &str) -> String {
    let is_target = |line: &&str| line.starts_with('[') && line.contains("]: ");
    let lines: Vec<_> = text.lines().filter(|line| !is_target(line)).collect();
    let mut plain = String::new();
    let text = lines.join(" ");
    let mut rest = text.trim();
    while let Some((before, (name, after))) = rest
        .split_once("[`")
        .and_then(|(before, after)| Some((before, after.split_once("`]")?)))
    {
        plain.push_str(&format!("{before}`{name}`"));
        let target = after
            .strip_prefix('(')
            .and_then(|after| after.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    plain.push_str(rest);
    plain
}

#[test]
fn a_description_has_no_links() {
    let text =
        "See [`Policy`](crate::Policy), and\n[`to_text`] too.\n\n[`to_text`]: crate::to_text";
    assert_eq!(plain(text), "See `Policy`, and `to_text` too.");
}
