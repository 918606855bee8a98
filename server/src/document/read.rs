//! From values to rules: what both formats have in common.

use std::collections::{HashMap, hash_map::Entry as Slot};

use serde_json::Map;

use super::{
    fields::{Fields, wrong},
    mistake::{Position, Report, quoted},
    name::PolicyPath,
    own, reference,
    yaml::{Node, Plain, Value},
};
use crate::rules::{Rule, Rules};

/// The most rules of all documents.
const MAX_RULES: usize = 10_000;

/// The most rules that a rule is below.
const MAX_LEVELS: usize = 30;

/// The value of `format` in documents of our own.
pub(super) const FORMAT: &str = "tollgate/v1";

/// The format of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// The reference server's.
    Reference,
    /// Ours.
    Own,
}

impl Format {
    fn document_keys(self) -> &'static [&'static str] {
        match self {
            Self::Reference => &["domain", "descriptors"],
            Self::Own => &["format", "domain", "descriptors"],
        }
    }

    fn rule_keys(self) -> [&'static str; 10] {
        let limits = match self {
            Self::Reference => "rate_limit",
            Self::Own => "limits",
        };
        [
            "key",
            "value",
            limits,
            "shadow_mode",
            "quota_mode",
            "detailed_metric",
            "value_to_metric",
            "share_threshold",
            "metadata",
            "descriptors",
        ]
    }
}

/// Reads documents into rules.
pub(super) struct Reader {
    pub(super) rules: Rules,
    pub(super) report: Report,
    merge_domains: bool,
    /// The number of rules so far.
    count: usize,
    /// Where each domain is first.
    domains: HashMap<String, Place>,
    /// Where the rules right below each domain are first.
    top: HashMap<String, Siblings>,
}

/// Where something is: the file and the position in it.
type Place = String;

/// Where each rule of one depth is, by key and value.
type Siblings = HashMap<(String, Option<String>), Place>;

impl Reader {
    pub(super) fn new(merge_domains: bool) -> Self {
        Self {
            rules: Rules::default(),
            report: Report::default(),
            merge_domains,
            count: 0,
            domains: HashMap::new(),
            top: HashMap::new(),
        }
    }

    fn place(&self, position: Position) -> Place {
        format!("{}:{position}", self.report.file())
    }

    /// Adds the rules of a document.
    pub(super) fn document(&mut self, node: &Node) {
        let report = &mut self.report;
        // Of a value that is no map, the format is the reference server's, whose reader reports it.
        let format = match &node.value {
            Value::Map(entries) if entries.iter().any(|entry| entry.key.text == "format") => {
                Format::Own
            }
            _ => Format::Reference,
        };
        let keys = format.document_keys();
        let Some(fields) = Fields::of(node, "a domain and its descriptors", keys, report) else {
            return;
        };
        if format == Format::Own && fields.text("format", report) != Some(FORMAT) {
            let at = fields.position_of("format");
            report.add(at, format!("unknown format; expected {FORMAT}"));
            return;
        }
        let domain = fields.text("domain", report).unwrap_or_default();
        if domain.is_empty() {
            let at = fields.position_of("domain");
            report.add(at, "the document has no domain; expected its name");
        }
        let position = fields.position_of("domain").unwrap_or(node.position);
        let place = self.place(position);
        match self.domains.entry(domain.to_owned()) {
            Slot::Occupied(first) if !domain.is_empty() && !self.merge_domains => {
                let message = format!(
                    "duplicate domain {}, which is at {} already; expected each domain once, or domains to be merged",
                    quoted(domain),
                    first.get()
                );
                self.report.add(Some(position), message);
            }
            Slot::Occupied(_) => {}
            Slot::Vacant(slot) => {
                slot.insert(place);
            }
        }
        let mut siblings = self.top.remove(domain).unwrap_or_default();
        let path = PolicyPath::domain(domain);
        let nodes = fields.list("descriptors", &mut self.report);
        let rules = self.read_rules(format, nodes, &path, 1, &mut siblings);
        self.top.insert(domain.to_owned(), siblings);
        let domain = self.rules.domains.entry(domain.to_owned());
        domain.or_default().extend(rules);
    }

    /// The rules of a list. `level` is 1 right below the domain.
    fn read_rules(
        &mut self,
        format: Format,
        nodes: &[Node],
        path: &PolicyPath,
        level: usize,
        siblings: &mut Siblings,
    ) -> Vec<Rule> {
        if let Some(first) = nodes.first().filter(|_| level > MAX_LEVELS) {
            let message =
                format!("rules below {MAX_LEVELS} others; expected at most {MAX_LEVELS} levels");
            self.report.add(Some(first.position), message);
            return Vec::new();
        }
        let mut rules = Vec::new();
        for node in nodes {
            self.count += 1;
            if self.count > MAX_RULES {
                if self.count == MAX_RULES + 1 {
                    let message = format!("too many rules; expected at most {MAX_RULES}");
                    self.report.add(Some(node.position), message);
                }
                break;
            }
            rules.extend(self.rule(format, node, path, level, siblings));
        }
        rules
    }

    fn rule(
        &mut self,
        format: Format,
        node: &Node,
        path: &PolicyPath,
        level: usize,
        siblings: &mut Siblings,
    ) -> Option<Rule> {
        let report = &mut self.report;
        let keys = format.rule_keys();
        let fields = Fields::of(node, "a rule with its key", &keys, report)?;
        let key = fields.text("key", report).unwrap_or_default();
        let value = fields.text("value", report);
        let value = match format {
            // As theirs, which can't tell an empty value from none.
            Format::Reference => value.filter(|value| !value.is_empty()),
            Format::Own => value,
        };
        for (is_mistake, field, message) in [
            (
                key.is_empty(),
                "key",
                "the rule has no key; expected its key",
            ),
            (
                key.contains('*'),
                "key",
                "a * in the key; expected wildcards in the value alone",
            ),
            (
                value.is_some_and(str::is_empty),
                "value",
                "an empty value; expected a value, or none to match every value",
            ),
        ] {
            if is_mistake {
                report.add(fields.position_of(field), message);
            }
        }
        let path = path.rule(key, value);
        let shadow_mode = fields.bool("shadow_mode", report);
        let quota_mode = fields.bool("quota_mode", report);
        let limits = match format {
            Format::Reference => reference::limit(&fields, &path, report)
                .into_iter()
                .collect(),
            Format::Own => own::limits(&fields, &path, report),
        };
        let mut rule = Rule {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            limits,
            shadow_mode,
            quota_mode,
            detailed_metric: fields.bool("detailed_metric", report),
            value_to_metric: fields.bool("value_to_metric", report),
            share_threshold: fields.bool("share_threshold", report),
            metadata: metadata(&fields, report),
            descriptors: Vec::new(),
        };
        if rule.share_threshold && !value.is_some_and(|value| value.contains('*')) {
            let message = "share_threshold of a value without wildcards; expected a value with a *";
            report.add(fields.position_of("share_threshold"), message);
        }
        let place = self.place(node.position);
        match siblings.entry((rule.key.clone(), rule.value.clone())) {
            Slot::Vacant(slot) => {
                slot.insert(place);
            }
            Slot::Occupied(first) if !key.is_empty() => {
                let value = value.map_or_else(String::new, |value| format!(" = {}", quoted(value)));
                let message = format!(
                    "duplicate rule {}{value}, which is at {} already; expected each key and value once",
                    quoted(key),
                    first.get()
                );
                self.report.add(Some(node.position), message);
            }
            Slot::Occupied(_) => {}
        }
        let nodes = fields.list("descriptors", &mut self.report);
        rule.descriptors = self.read_rules(format, nodes, &path, level + 1, &mut Siblings::new());
        Some(rule)
    }
}

/// The metadata of a rule, if it has any.
fn metadata(fields: &Fields<'_>, report: &mut Report) -> Option<Map<String, serde_json::Value>> {
    let node = &fields.entry("metadata")?.node;
    match json(node, report)? {
        serde_json::Value::Object(object) => Some(object).filter(|object| !object.is_empty()),
        _ => {
            wrong("metadata", node, "a map", report);
            None
        }
    }
}

/// A value of metadata as JSON. Its maps may have any keys.
fn json(node: &Node, report: &mut Report) -> Option<serde_json::Value> {
    Some(match &node.value {
        Value::Scalar(scalar) => match scalar.plain() {
            None => scalar.text.clone().into(),
            Some(Plain::Null) => serde_json::Value::Null,
            Some(Plain::Bool(bool)) => bool.into(),
            Some(Plain::Unsigned(number)) => number.into(),
            Some(Plain::Negative(number)) => number.into(),
            Some(Plain::Float(number)) => match serde_json::Number::from_f64(number) {
                Some(number) => number.into(),
                None => {
                    wrong("metadata", node, "a number that JSON has", report);
                    return None;
                }
            },
        },
        Value::List(nodes) => {
            let values = nodes.iter().filter_map(|node| json(node, report));
            serde_json::Value::Array(values.collect())
        }
        Value::Map(entries) => {
            let entries = entries.iter();
            let entries = entries
                .filter_map(|entry| Some((entry.key.text.clone(), json(&entry.node, report)?)));
            serde_json::Value::Object(entries.collect())
        }
    })
}
