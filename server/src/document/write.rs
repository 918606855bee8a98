//! From rules to documents of our own format.

use std::fmt::{self, Write};

use serde_json::Value;

use super::{
    own::{CALENDAR, DEFAULT},
    read::FORMAT,
    schema::is_string,
};
use crate::rules::{CountedBy, Limit, Rule, Rules};

/// The longest text that is written as a key that needs no `?` in front.
const MAX_KEY_BYTES: usize = 200;

/// Documents in tollgate's format, one for each domain, that are [parsed](super::parse) into the same rules.
///
/// ```
/// use tollgate_server::document::{self, Options, Text};
///
/// let text = "
/// domain: shop
/// descriptors:
///   - key: user
///     rate_limit: { unit: minute, requests_per_unit: 100 }
/// ";
/// let rules = document::parse(&[Text { file: "shop.yaml", text }], Options::default())?;
/// assert_eq!(document::write(&rules), "\
/// format: tollgate/v1
/// domain: shop
/// descriptors:
///   - key: user
///     limits:
///       - quota: 100/min
///         strategy: calendar_window from_epoch
///         on_reject: charge
///         independent: true
/// ");
/// # Ok::<(), document::Mistakes>(())
/// ```
pub fn write(rules: &Rules) -> String {
    let mut text = String::new();
    for (index, (domain, rules)) in rules.domains.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        let domain = Text(domain);
        // A `String` takes all that is written.
        let _ = write!(text, "format: {FORMAT}\ndomain: {domain}\n");
        let _ = descriptors(&mut text, rules, 0);
    }
    text
}

fn descriptors(text: &mut String, rules: &[Rule], indent: usize) -> fmt::Result {
    if !rules.is_empty() {
        writeln!(text, "{:indent$}descriptors:", "")?;
    }
    for rule in rules {
        writeln!(text, "{:indent$}  - key: {}", "", Text(&rule.key))?;
        let indent = indent + 4;
        if let Some(value) = &rule.value {
            writeln!(text, "{:indent$}value: {}", "", Text(value))?;
        }
        if !rule.limits.is_empty() {
            writeln!(text, "{:indent$}limits:", "")?;
        }
        for written in &rule.limits {
            limit(text, written, indent)?;
        }
        for (key, is_set) in [
            ("shadow_mode", rule.shadow_mode),
            ("quota_mode", rule.quota_mode),
            ("detailed_metric", rule.detailed_metric),
            ("value_to_metric", rule.value_to_metric),
            ("share_threshold", rule.share_threshold),
        ] {
            if is_set {
                writeln!(text, "{:indent$}{key}: true", "")?;
            }
        }
        if let Some(metadata) = &rule.metadata {
            write!(text, "{:indent$}metadata: ", "")?;
            map(text, metadata)?;
            text.push('\n');
        }
        descriptors(text, &rule.descriptors, indent)?;
    }
    Ok(())
}

fn limit(text: &mut String, limit: &Limit, indent: usize) -> fmt::Result {
    let mut lines = Vec::new();
    if let Some(name) = &limit.name {
        lines.push(format!("name: {}", Text(name)));
    }
    match &limit.counted {
        None => lines.push("unlimited: true".to_owned()),
        Some(counted) => lines.extend(counting(counted)),
    }
    let replaces: Vec<_> = limit.replaces.iter().map(|name| Text(name)).collect();
    if !replaces.is_empty() {
        let names: Vec<_> = replaces.iter().map(Text::to_string).collect();
        lines.push(format!("replaces: [{}]", names.join(", ")));
    }
    for (index, line) in lines.iter().enumerate() {
        let dash = if index == 0 { "- " } else { "  " };
        writeln!(text, "{:indent$}  {dash}{line}", "")?;
    }
    Ok(())
}

/// The keys of a limit that say how it is counted, with their values.
pub(crate) fn counting(counted: &CountedBy) -> Vec<String> {
    let mut lines = vec![format!("quota: {}", counted.policy.quota())];
    match counted.policy.strategy_config_text().as_deref() {
        _ if counted.requests_per_unit == 0 => {}
        None | Some(DEFAULT) => {}
        Some(CALENDAR) if counted.unit.is_some() => lines.push("calendar: true".to_owned()),
        Some(strategy) => lines.push(format!("strategy: {strategy}")),
    }
    if counted.policy.charges_rejected() {
        lines.push("on_reject: charge".to_owned());
    }
    if counted.independent {
        lines.push("independent: true".to_owned());
    }
    lines
}

/// A map of metadata, in braces.
fn map(text: &mut String, map: &serde_json::Map<String, Value>) -> fmt::Result {
    text.push('{');
    for (index, (key, item)) in map.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let mark = if key.len() > MAX_KEY_BYTES { "? " } else { "" };
        write!(text, "{separator}{mark}{} : ", Text(key))?;
        value(text, item)?;
    }
    text.push('}');
    Ok(())
}

fn value(text: &mut String, item: &Value) -> fmt::Result {
    match item {
        Value::Null => text.write_str("null"),
        Value::Bool(bool) => write!(text, "{bool}"),
        Value::Number(number) => write!(text, "{number}"),
        Value::String(string) => write!(text, "{}", Text(string)),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                value(text, item)?;
            }
            text.push(']');
            Ok(())
        }
        Value::Object(object) => map(text, object),
    }
}

/// A text as a scalar of YAML that is read as this text: in quotes unless it is plain words.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
        if text.starts_with(|char: char| char.is_ascii_alphanumeric())
            && text.bytes().all(is_word)
            && is_string(text)
        {
            return f.write_str(text);
        }
        f.write_char('"')?;
        for char in text.chars() {
            match char {
                '"' | '\\' => write!(f, "\\{char}")?,
                ' '..='~' => f.write_char(char)?,
                _ if char.is_alphanumeric() => f.write_char(char)?,
                _ => write!(f, "\\U{:08X}", u32::from(char))?,
            }
        }
        f.write_char('"')
    }
}
