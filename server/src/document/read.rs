//! From documents to rules: what both formats have in common.

use std::collections::{HashMap, hash_map::Entry};

use serde_saphyr::{Location, Spanned};

use super::{
    mistake::{Position, Report, quoted},
    name::PolicyPath,
    own, reference,
    schema::{self, location_of},
};
use crate::rules::{Limit, Rule, Rules};

/// The most rules of all documents.
const MAX_RULES: usize = 10_000;

/// The most rules that a rule is below.
const MAX_LEVELS: usize = 30;

/// The value of `format` in documents of our own.
pub(super) const FORMAT: &str = "tollgate/v1";

/// The format of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// The reference server's.
    Reference,
    /// Ours.
    Own,
}

/// Reads documents into rules.
#[derive(Default)]
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
            merge_domains,
            ..Self::default()
        }
    }

    fn place(&self, location: Location) -> Place {
        let file = self.report.file();
        Position::of(location)
            .map_or_else(|| file.to_owned(), |position| format!("{file}:{position}"))
    }

    /// Adds the rules of a document.
    pub(super) fn document(&mut self, document: Spanned<schema::Document>) {
        let report = &mut self.report;
        let (start, document) = (document.defined, document.value);
        let format = match &document.format {
            None => Format::Reference,
            Some(format) if format.value == FORMAT => Format::Own,
            Some(format) => {
                let message = format!("unknown format; expected {FORMAT}");
                report.add(format.defined, message);
                return;
            }
        };
        let location = location_of(document.domain.as_ref()).unwrap_or(start);
        let domain = report.text("domain", document.domain.as_ref());
        let domain = domain.unwrap_or_default();
        if domain.is_empty() {
            let message = "the document has no domain; expected its name";
            report.add(location, message);
        }
        let place = self.place(location);
        match self.domains.entry(domain.to_owned()) {
            Entry::Occupied(first) if !domain.is_empty() && !self.merge_domains => {
                let message = format!(
                    "duplicate domain {}, which is at {} already; expected each domain once, or domains to be merged",
                    quoted(domain),
                    first.get()
                );
                self.report.add(location, message);
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
        }
        let mut siblings = self.top.remove(domain).unwrap_or_default();
        let path = PolicyPath::domain(domain);
        let rules = self.read_rules(format, document.descriptors, &path, 1, &mut siblings);
        self.top.insert(domain.to_owned(), siblings);
        let domain = self.rules.domains.entry(domain.to_owned());
        domain.or_default().extend(rules);
    }

    /// The rules of a list. `level` is 1 right below the domain.
    fn read_rules(
        &mut self,
        format: Format,
        list: Option<Vec<Spanned<schema::Rule>>>,
        path: &PolicyPath,
        level: usize,
        siblings: &mut Siblings,
    ) -> Vec<Rule> {
        let list = list.unwrap_or_default();
        if let Some(first) = list.first().filter(|_| level > MAX_LEVELS) {
            let message =
                format!("rules below {MAX_LEVELS} others; expected at most {MAX_LEVELS} levels");
            self.report.add(first.defined, message);
            return Vec::new();
        }
        let mut rules = Vec::new();
        for rule in list {
            self.count += 1;
            if self.count > MAX_RULES {
                if self.count == MAX_RULES + 1 {
                    let message = format!("too many rules; expected at most {MAX_RULES}");
                    self.report.add(rule.defined, message);
                }
                break;
            }
            rules.push(self.rule(format, rule, path, level, siblings));
        }
        rules
    }

    fn rule(
        &mut self,
        format: Format,
        rule: Spanned<schema::Rule>,
        path: &PolicyPath,
        level: usize,
        siblings: &mut Siblings,
    ) -> Rule {
        let report = &mut self.report;
        let (start, place) = (rule.defined, rule.referenced);
        let rule = rule.value;
        let key_location = location_of(rule.key.as_ref()).unwrap_or(start);
        let key = report.text("key", rule.key.as_ref()).unwrap_or_default();
        if key.is_empty() {
            let message = "the rule has no key; expected its key";
            report.add(key_location, message);
        }
        if key.contains('*') {
            let message = "a * in the key; expected wildcards in the value alone";
            report.add(key_location, message);
        }
        let value = match report.text("value", rule.value.as_ref()) {
            // As theirs, which can't tell an empty value from none.
            Some("") if format == Format::Reference => None,
            Some("") => {
                let message = "an empty value; expected a value, or none to match every value";
                report.add(location_of(rule.value.as_ref()).unwrap_or(start), message);
                None
            }
            value => value,
        };
        if let Some(share) = rule.share_threshold.as_ref().filter(|share| share.value)
            && !value.is_some_and(|value| value.contains('*'))
        {
            let message = "share_threshold of a value without wildcards; expected a value with a *";
            report.add(share.defined, message);
        }
        let path = path.rule(key, value);
        let limits = limits(format, rule.rate_limit, rule.limits, &path, report);
        let place = self.place(place);
        match siblings.entry((key.to_owned(), value.map(str::to_owned))) {
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
            Entry::Occupied(first) if !key.is_empty() => {
                let shown = value.map_or_else(String::new, |value| format!(" = {}", quoted(value)));
                let message = format!(
                    "duplicate rule {}{shown}, which is at {} already; expected each key and value once",
                    quoted(key),
                    first.get()
                );
                self.report.add(start, message);
            }
            Entry::Occupied(_) => {}
        }
        Rule {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            limits,
            shadow_mode: rule.shadow_mode == Some(true),
            quota_mode: rule.quota_mode == Some(true),
            detailed_metric: rule.detailed_metric == Some(true),
            value_to_metric: rule.value_to_metric == Some(true),
            share_threshold: rule.share_threshold.is_some_and(|share| share.value),
            metadata: rule.metadata.filter(|metadata| !metadata.is_empty()),
            descriptors: self.read_rules(
                format,
                rule.descriptors,
                &path,
                level + 1,
                &mut Siblings::new(),
            ),
        }
    }
}

/// The limits of a rule, under the key that its format has for them.
fn limits(
    format: Format,
    rate_limit: Option<Spanned<schema::RateLimit>>,
    limits: Option<Spanned<Vec<Spanned<schema::Limit>>>>,
    path: &PolicyPath,
    report: &mut Report,
) -> Vec<Limit> {
    match (format, rate_limit, limits) {
        (Format::Reference, limit, None) => {
            let limit = limit.and_then(|limit| reference::limit(&limit, path, report));
            limit.into_iter().collect()
        }
        (Format::Own, None, limits) => {
            limits.map_or_else(Vec::new, |limits| own::limits(&limits.value, path, report))
        }
        (Format::Reference, _, Some(limits)) => {
            let message = format!(
                "limits in the reference format; expected rate_limit, or format: {FORMAT} in the document"
            );
            report.add(limits.defined, message);
            Vec::new()
        }
        (Format::Own, Some(limit), _) => {
            let message = "rate_limit in tollgate's format; expected limits";
            report.add(limit.defined, message);
            Vec::new()
        }
    }
}
