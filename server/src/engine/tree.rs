//! The rules as requests are matched against them.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;
use tollgate::{Key, KeyExtractor, Limiter, extract, limiter::PolicyHandle};

use super::{
    metadata::to_struct,
    metrics::{Labels, RuleCounters, RuleMetrics},
    override_policy,
};
use crate::{
    proto::RateLimitDescriptor,
    rules::{CountedBy, Rule, Rules, Unit},
};

/// The rules of all domains.
#[derive(Debug, Default)]
pub(super) struct Tree {
    domains: HashMap<String, Level>,
}

/// The rules of one depth, by the keys of entries.
#[derive(Debug, Default)]
struct Level {
    keys: HashMap<String, KeyNodes>,
}

/// The rules of one depth and key.
#[derive(Debug, Default)]
struct KeyNodes {
    by_value: HashMap<String, Node>,
    /// In the order of the document: the first that matches counts.
    wildcards: Vec<(Wildcard, Node)>,
    any_value: Option<Box<Node>>,
}

#[derive(Debug)]
struct Node {
    rule: Option<Arc<CompiledRule>>,
    /// What the counters' keys say of the entry's value.
    counts_by: CountsBy,
    /// Whether metrics name the value.
    value_to_metric: bool,
    /// The rule's value; empty if it matches every value.
    value: String,
    children: Level,
}

/// What a counter's key says of an entry's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountsBy {
    /// Nothing: all values that the rule matches share a counter. The policy stands for the rule.
    Rule,
    Value,
    /// The value's hash: the entry's key names a credential.
    SecretValue,
}

/// A rule that limits.
#[derive(Debug)]
pub(super) struct CompiledRule {
    pub(super) limits: Vec<CompiledLimit>,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) metadata: Option<prost_types::Struct>,
    detailed_metric: bool,
    /// Those of its metrics.
    labels: Labels,
    /// Those that name no value of a request. Found once the rules are in force: only then are there no series of older ones.
    counters: OnceLock<Arc<RuleCounters>>,
}

/// The series of metrics of rules.
pub(super) struct TreeSeries {
    rules: Vec<Arc<CompiledRule>>,
    /// Of all rules, and of the limits that descriptors bring.
    labels: HashSet<Labels>,
}

impl TreeSeries {
    /// Makes the metrics those of these rules: series of others are removed, and these have theirs.
    pub(super) fn put_in_force(&self, metrics: &RuleMetrics) {
        metrics.retain(&self.labels);
        for rule in &self.rules {
            rule.counters(metrics);
        }
    }
}

/// A limit of a rule.
#[derive(Debug)]
pub(super) struct CompiledLimit {
    /// Empty if it has none.
    pub(super) name: Arc<str>,
    pub(super) replaces: Vec<String>,
    /// `None` if requests pass, and are not counted.
    pub(super) counted: Option<Arc<Counted>>,
}

/// How a limit is counted.
pub(super) struct Counted {
    /// The limit's name; empty if it has none.
    pub(super) name: Arc<str>,
    pub(super) requests_per_unit: u64,
    pub(super) unit: Option<Unit>,
    pub(super) period_seconds: u64,
    pub(super) independent: bool,
    pub(super) policy: Arc<str>,
    /// Found at the first use: in a limiter with many policies each look-up takes a while.
    handle: OnceLock<PolicyHandle>,
}

/// The rule of a descriptor.
pub(super) struct Match {
    pub(super) rule: Arc<CompiledRule>,
    /// The key under the rule's policy.
    pub(super) key: Key,
    pub(super) counters: Arc<RuleCounters>,
}

impl Counted {
    fn new(name: &str, counted: &CountedBy) -> Self {
        Self {
            name: name.into(),
            requests_per_unit: counted.requests_per_unit,
            unit: counted.unit,
            period_seconds: counted.policy.quota().period().as_secs(),
            independent: counted.independent,
            policy: counted.policy.name().into(),
            handle: OnceLock::new(),
        }
    }

    /// A limit that a descriptor brings.
    pub(super) fn of_override(unit: Unit, requests_per_unit: u64) -> Self {
        Self {
            name: Arc::default(),
            requests_per_unit,
            unit: Some(unit),
            period_seconds: unit.quota(requests_per_unit).period().as_secs(),
            independent: true,
            policy: override_policy(unit).into(),
            handle: OnceLock::new(),
        }
    }

    /// The name that clients see: the limit's, if a header field can have it.
    pub(super) fn public_name(&self) -> &str {
        let fits = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if !self.name.is_empty() && self.name.bytes().all(fits) {
            &self.name
        } else {
            &self.policy
        }
    }

    /// The handle to the policy; `None` if the limiter does not have it.
    pub(super) fn handle(&self, limiter: &Limiter) -> Option<&PolicyHandle> {
        if let Some(handle) = self.handle.get() {
            return Some(handle);
        }
        let handle = limiter.policy(&self.policy).ok()?;
        Some(self.handle.get_or_init(|| handle))
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl Tree {
    pub(super) fn new(rules: &Rules) -> Self {
        let domains = rules.domains.iter().map(|(domain, rules)| {
            let mut labels = vec![domain.clone()];
            (domain.clone(), Level::new(rules, &mut labels))
        });
        Self {
            domains: domains.collect(),
        }
    }

    /// The series of metrics of these rules.
    pub(super) fn series(&self) -> TreeSeries {
        let mut rules = Vec::new();
        let levels = self.domains.values();
        levels.for_each(|level| level.add_rules(&mut rules));
        let overrides = self.domains.keys().map(|domain| of_overrides(domain));
        let labels = rules.iter().map(|rule| rule.labels.clone());
        TreeSeries {
            labels: labels.chain(overrides).collect(),
            rules,
        }
    }

    pub(super) fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The rule of a descriptor: at each depth that with the entry's value, or else the first wildcard that matches, or else that
    /// of the key alone. The last one counts if it is as deep as the descriptor has entries.
    pub(super) fn find(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        metrics: &RuleMetrics,
    ) -> Option<Match> {
        let mut level = self.domains.get(domain)?;
        let mut path = SmallVec::<[&Node; 4]>::new();
        for entry in &descriptor.entries {
            let node = level.keys.get(&entry.key)?.find(&entry.text())?;
            path.push(node);
            level = &node.children;
        }
        let rule = path.last()?.rule.clone()?;
        let entries = || path.iter().zip(&descriptor.entries);
        let values = entries().filter_map(|(node, entry)| match node.counts_by {
            CountsBy::Rule => None,
            CountsBy::Value => Some(Key::new(&entry.value)),
            CountsBy::SecretValue => Some(Key::secret(&entry.value)),
        });
        let values: SmallVec<[Key; 4]> = values.collect();
        let key = match &values[..] {
            [] => Key::global(),
            [one] => *one,
            several => Key::tuple(several),
        };
        let names_values = |node: &&Node| {
            node.counts_by != CountsBy::Rule && (rule.detailed_metric || node.value_to_metric)
        };
        let counters = if path.iter().any(names_values) {
            let labels = entries().map(|(node, entry)| {
                if !names_values(node) {
                    label(&entry.key, &node.value)
                } else if node.counts_by == CountsBy::SecretValue {
                    // Metrics are no place for credentials.
                    label(&entry.key, Key::secret(&entry.value).as_str())
                } else {
                    label(&entry.key, shortened(&entry.text()))
                }
            });
            let labels = std::iter::once(domain.to_owned()).chain(labels);
            let labels: Vec<String> = labels.collect();
            metrics
                .counters(&rule.labels, &labels)
                .unwrap_or_else(|| rule.counters(metrics).clone())
        } else {
            rule.counters(metrics).clone()
        };
        Some(Match {
            rule,
            key,
            counters,
        })
    }
}

impl Level {
    /// `labels` are those of the metrics of the rule above.
    fn new(rules: &[Rule], labels: &mut Labels) -> Self {
        let mut level = Self::default();
        for rule in rules {
            let value = rule.value.as_deref().unwrap_or_default();
            labels.push(label(&rule.key, value));
            let node = Node::new(rule, labels);
            labels.pop();
            let nodes = level.keys.entry(rule.key.clone()).or_default();
            // The first rule of several for the same value counts.
            if value.is_empty() {
                nodes.any_value.get_or_insert_with(|| Box::new(node));
            } else if value.contains('*') {
                nodes.wildcards.push((Wildcard::new(value), node));
            } else {
                nodes.by_value.entry(value.to_owned()).or_insert(node);
            }
        }
        level
    }

    /// Adds the rules that limit, at this depth and below.
    fn add_rules(&self, rules: &mut Vec<Arc<CompiledRule>>) {
        for nodes in self.keys.values() {
            let wildcards = nodes.wildcards.iter().map(|(_, node)| node);
            let any_value = nodes.any_value.as_deref();
            for node in nodes.by_value.values().chain(wildcards).chain(any_value) {
                rules.extend(node.rule.clone());
                node.children.add_rules(rules);
            }
        }
    }
}

impl KeyNodes {
    fn find(&self, value: &str) -> Option<&Node> {
        let wildcard = || {
            let mut wildcards = self.wildcards.iter();
            let found = wildcards.find(|(wildcard, _)| wildcard.matches(value));
            found.map(|(_, node)| node)
        };
        let exact = self.by_value.get(value);
        exact.or_else(wildcard).or(self.any_value.as_deref())
    }
}

impl Node {
    fn new(rule: &Rule, labels: &mut Labels) -> Self {
        let value = rule.value.clone().unwrap_or_default();
        let is_wildcard = value.contains('*');
        let counts_by = if !value.is_empty() && (!is_wildcard || rule.share_threshold) {
            CountsBy::Rule
        } else if is_credential(&rule.key) {
            CountsBy::SecretValue
        } else {
            CountsBy::Value
        };
        Self {
            rule: CompiledRule::new(rule, labels).map(Arc::new),
            counts_by,
            value_to_metric: rule.value_to_metric,
            value,
            children: Level::new(&rule.descriptors, labels),
        }
    }
}

impl CompiledRule {
    /// `None` if the rule has no limits.
    fn new(rule: &Rule, labels: &[String]) -> Option<Self> {
        if rule.limits.is_empty() {
            return None;
        }
        let limits = rule.limits.iter().map(|limit| {
            let name = limit.name.as_deref().unwrap_or_default();
            let counted = limit.counted.as_ref();
            CompiledLimit {
                name: name.into(),
                replaces: limit.replaces.clone(),
                counted: counted.map(|counted| Arc::new(Counted::new(name, counted))),
            }
        });
        Some(Self {
            limits: limits.collect(),
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
            metadata: rule.metadata.as_ref().map(to_struct),
            detailed_metric: rule.detailed_metric,
            labels: labels.to_vec(),
            counters: OnceLock::new(),
        })
    }

    fn counters(&self, metrics: &RuleMetrics) -> &Arc<RuleCounters> {
        let counters = || metrics.counters_of_rule(&self.labels);
        self.counters.get_or_init(counters)
    }
}

/// The most characters of a request's value in a label.
const MAX_LABEL_CHARS: usize = 64;

/// The beginning of a value: clients choose how long it is.
fn shortened(value: &str) -> &str {
    let end = value.char_indices().nth(MAX_LABEL_CHARS);
    end.map_or(value, |(end, _)| &value[..end])
}

/// A label of metrics: `key` or `key_value`.
pub(super) fn label(key: &str, value: &str) -> String {
    match value {
        "" => key.to_owned(),
        value => format!("{key}_{value}"),
    }
}

/// The labels of the limits that descriptors of a domain bring. They have one series: their number is up to clients.
pub(super) fn of_overrides(domain: &str) -> Labels {
    vec![domain.to_owned(), "limit_override".to_owned()]
}

/// Whether values under this key are credentials, by the rule of [`extract`] for names of fields.
pub(super) fn is_credential(key: &str) -> bool {
    // The proxy's name of a constant, which no client can choose.
    let is_constant = key == "generic_key";
    !is_constant && extract::query(key).key_from_text(&["value"]) == Some(Key::secret("value"))
}

/// A text with `*` in it, each of which matches any text.
#[derive(Debug)]
struct Wildcard {
    prefix: String,
    inner: Vec<String>,
    suffix: String,
}

impl Wildcard {
    fn new(text: &str) -> Self {
        let mut parts = text.split('*').map(str::to_owned);
        let prefix = parts.next().unwrap_or_default();
        let suffix = parts.next_back().unwrap_or_default();
        Self {
            prefix,
            inner: parts.collect(),
            suffix,
        }
    }

    /// Looks for each part once, behind the one before it: the first place leaves most for the rest.
    fn matches(&self, text: &str) -> bool {
        let rest = text.strip_prefix(&*self.prefix);
        let Some(mut rest) = rest.and_then(|rest| rest.strip_suffix(&*self.suffix)) else {
            return false;
        };
        self.inner
            .iter()
            .all(|part| match rest.split_once(&**part) {
                Some((_, behind)) => {
                    rest = behind;
                    true
                }
                None => false,
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_wildcard_matches_any_text_in_place_of_each_asterisk() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("files*", "files/a", true),
            ("files*", "file", false),
            ("*.png", "a.png", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a**b", "ab", true),
        ] {
            assert_eq!(
                Wildcard::new(pattern).matches(text),
                expected,
                "{pattern} {text}"
            );
        }
    }

    /// Whether a pattern matches, by trying every text for each asterisk.
    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
            [first, rest @ ..] => text.first() == Some(first) && matches(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn wildcards_match_as_if_every_text_were_tried(
            pattern in "[ab*]{0,4}\\*[ab*]{0,4}",
            text in "[ab]{0,9}",
        ) {
            let expected = matches(pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(Wildcard::new(&pattern).matches(&text), expected);
        }
    }

    #[test]
    fn values_are_credentials_if_their_keys_name_one() {
        for key in [
            "authorization",
            "x-api-key",
            "api_key",
            "token",
            "cookie",
            "session-id",
        ] {
            assert!(is_credential(key), "{key}");
        }
        for key in [
            "generic_key",
            "remote_address",
            "header_match",
            "path",
            "user",
            "",
        ] {
            assert!(!is_credential(key), "{key}");
        }
    }
}
