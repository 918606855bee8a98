//! Costs by method and path.

use std::sync::Arc;

use http::{Method, request::Parts};

use super::{
    CostFn, Policy,
    skip::path::{path_matches, path_may_match},
};
use crate::{
    extract::original_path,
    setting::{Code, SettingValue},
};

/// Costs of requests by method and path.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostRules(Vec<CostRule>);

#[derive(Clone, Debug)]
struct CostRule {
    method: Option<Method>,
    path: Option<Box<str>>,
    cost: u64,
}

impl CostRules {
    /// Adds a rule, which counts for the requests that those before it don't match.
    pub(crate) fn add(&mut self, method: Option<Method>, path: Option<&str>, cost: u64) {
        let path = path.map(Box::from);
        self.0.push(CostRule { method, path, cost });
    }

    /// The cost of the first rule that matches, or else 1. A path that servers read differently costs the most of what it may
    /// cost.
    fn cost(&self, parts: &Parts) -> u64 {
        let path = original_path(parts);
        let of_method = |rule: &&CostRule| rule.method.as_ref().is_none_or(|m| *m == parts.method);
        let mut highest = 0;
        for rule in self.0.iter().filter(of_method) {
            match rule.path.as_deref() {
                Some(name) if !path_matches(name, path) => {
                    if path_may_match(name, path) {
                        highest = highest.max(rule.cost);
                    }
                }
                _ => return highest.max(rule.cost),
            }
        }
        highest.max(1)
    }

    fn value(&self) -> SettingValue {
        SettingValue::list(self.0.iter().map(|rule| {
            let method = rule.method.as_ref();
            let method = method.map(|method| ("method", SettingValue::text(method.to_string())));
            let path = rule.path.as_ref();
            let path = path.map(|path| ("path", SettingValue::text(path.to_string())));
            let cost = ("cost", SettingValue::Number(rule.cost));
            SettingValue::table(method.into_iter().chain(path).chain([cost]))
        }))
    }
}

impl Policy {
    /// Sets the cost of each request by its method and path.
    pub(crate) fn cost_rules(self, rules: CostRules) -> Self {
        let value = rules.value();
        let cost: Arc<CostFn> = Arc::new(move |parts: &Parts| rules.cost(parts));
        self.cost_from(Code::described(cost, value))
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
            assert_eq!(rules.cost(&parts), cost, "{path}");
        }
    }
}
