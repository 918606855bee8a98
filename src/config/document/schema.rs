//! What is not for readers of the JSON Schema, which is made of the fields and their documentation.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

/// The schema of a quota.
pub(super) struct QuotaSchema;

impl JsonSchema for QuotaSchema {
    fn schema_name() -> Cow<'static, str> {
        "Quota".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Units per period, with a burst.",
            "pattern": r"^\s*[0-9_]+\s*(/|\s+per\s+|concurrent)",
            "examples": ["100/min", "10/s burst 20", "5000 per day", "3/500ms", "8 concurrent"],
        })
    }
}

/// Removes the links of Rust's documentation from descriptions, and their line breaks; and defaults that say that nothing is set.
pub(super) fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| name != "default" || !is_unset(value));
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => *text = plain(text),
                    value => tidy(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        value => value.is_null(),
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
        "See [`Policy`](crate::Policy), and\n[`Limiter`] too.\n\n[`Limiter`]: crate::Limiter";
    assert_eq!(plain(text), "See `Policy`, and `Limiter` too.");
}
