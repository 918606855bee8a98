//! Costs by method and path, as documents have them. `policy/validate.rs` checks them against the quota.

use http::Method;

use super::{
    Cost, Policy,
    skip::path::{PathPattern, RequestPath},
};
use crate::{error::InvalidValue, setting::SettingValue};

/// Costs of requests by method and path.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostRules(Vec<CostRule>);

#[derive(Clone, Debug)]
struct CostRule {
    method: Option<Method>,
    path: Option<PathPattern>,
    cost: u64,
}

impl CostRules {
    /// Adds a rule, which counts for the requests that those before it don't match.
    pub(crate) fn add(&mut self, method: Option<Method>, path: Option<&str>, cost: u64) {
        let path = path.map(PathPattern::new);
        self.0.push(CostRule { method, path, cost });
    }

    /// The cost of the first rule that matches, or else 1. A path that servers read differently costs the most of what it may
    /// cost.
    pub(super) fn cost(&self, method: &Method, path: &RequestPath<'_>) -> u64 {
        let of_method = |rule: &&CostRule| rule.method.as_ref().is_none_or(|own| own == method);
        let mut highest = 0;
        for rule in self.0.iter().filter(of_method) {
            match &rule.path {
                Some(pattern) if !pattern.matches(path) => {
                    if pattern.may_match(path) {
                        highest = highest.max(rule.cost);
                    }
                }
                _ => return highest.max(rule.cost),
            }
        }
        highest.max(1)
    }

    /// The cost of each rule.
    pub(super) fn costs(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|rule| rule.cost)
    }

    /// Reports the paths that no rule can have.
    pub(super) fn validate_paths(&self, report: &mut dyn FnMut(InvalidValue)) {
        for (index, rule) in self.0.iter().enumerate() {
            if let Some(Err(invalid)) = rule.path.as_ref().map(PathPattern::validate) {
                report(invalid.in_entry("cost[].path", index));
            }
        }
    }

    pub(super) fn value(&self) -> SettingValue {
        SettingValue::list(self.0.iter().map(|rule| {
            let method = rule.method.as_ref();
            let method = method.map(|method| ("method", SettingValue::text(method.to_string())));
            let path = rule.path.as_ref();
            let path = path.map(|pattern| ("path", SettingValue::text(pattern.text.to_string())));
            let cost = ("cost", SettingValue::Number(rule.cost));
            SettingValue::table(method.into_iter().chain(path).chain([cost]))
        }))
    }
}

impl Policy {
    /// Sets the cost of each request by its method and path.
    pub(crate) fn cost_rules(mut self, rules: CostRules) -> Self {
        self.cost = Some(Cost::Rules(rules));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_costs_what_the_first_rule_says_that_matches_it() {
        let mut rules = CostRules::default();
        rules.add(Some(Method::POST), Some("/upload/*"), 10);
        rules.add(None, Some("/upload/*"), 3);
        rules.add(None, Some("/health"), 0);
        for (method, path, cost) in [
            (Method::POST, "/upload/a", 10),
            (Method::GET, "/upload/a", 3),
            (Method::GET, "/health", 0),
            (Method::GET, "/", 1),
            // Servers read these differently: the most of what they may cost.
            (Method::POST, "/x/../upload/a", 10),
            (Method::POST, "/%75pload/a", 10),
            (Method::GET, "/health;a", 1),
        ] {
            let request = http::Request::builder().method(method).uri(path);
            let (parts, ()) = request.body(()).expect("a request").into_parts();
            assert_eq!(
                rules.cost(&parts.method, &RequestPath::of(&parts)),
                cost,
                "{path}"
            );
        }
    }
}
