//! What requests cost. `policy/validate.rs` checks costs against the quota.

use http::{Method, request::Parts};

use super::skip::path::{PathPattern, RequestPath};
use crate::shared_fn::SharedFn;

/// Returns the units that a request costs.
pub type CostFn = dyn Fn(&Parts) -> u64 + Send + Sync;

/// The units that a request costs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cost {
    /// The same for each request. A request that costs 0 is always admitted.
    Units(u64),
    /// What a function returns for the request's head.
    With(SharedFn<CostFn>),
    /// The cost of the first rule that matches its method and path, or else 1.
    Rules(Vec<CostRule>),
}

/// The cost of requests with a method and a path.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CostRule {
    /// The requests' method. Default: any.
    pub method: Option<Method>,
    /// The requests' path, or with `/*` at its end all paths beneath it. Default: any.
    pub path: Option<PathPattern>,
    /// The units that such a request costs.
    pub cost: u64,
}

impl Default for Cost {
    /// One unit for each request.
    fn default() -> Self {
        Self::Units(1)
    }
}

impl CostRule {
    /// A rule for all requests, which [`method`](Self::method) and [`path`](Self::path) restrict.
    pub fn new(cost: u64) -> Self {
        Self {
            cost,
            ..Self::default()
        }
    }
}

impl Cost {
    pub(super) fn of(&self, parts: &Parts, path: &RequestPath<'_>) -> u64 {
        match self {
            Self::Units(units) => *units,
            Self::With(cost) => cost(parts),
            Self::Rules(rules) => cost_of(rules, &parts.method, path),
        }
    }
}

/// The cost of the first rule that matches, or else 1. A path that servers read differently costs the most of what it may cost.
fn cost_of(rules: &[CostRule], method: &Method, path: &RequestPath<'_>) -> u64 {
    let of_method = |rule: &&CostRule| rule.method.as_ref().is_none_or(|own| own == method);
    let mut highest = 0;
    for rule in rules.iter().filter(of_method) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_costs_what_the_first_rule_says_that_matches_it() {
        let rule = |method: Option<Method>, path, cost| CostRule {
            method,
            path: Some(PathPattern::new(path)),
            cost,
        };
        let rules = [
            rule(Some(Method::POST), "/upload/*", 10),
            rule(None, "/upload/*", 3),
            rule(None, "/health", 0),
        ];
        for (method, path, cost) in [
            (Method::POST, "/upload/a", 10),
            (Method::GET, "/upload/a", 3),
            (Method::GET, "/health", 0),
            (Method::GET, "/", 1),
            // Servers read these differently: the most of what they may cost.
            (Method::POST, "/x/../upload/a", 10),
            (Method::POST, "/%75pload/a", 10),
            (Method::GET, "/health;a", 3),
        ] {
            let request = http::Request::builder().method(method).uri(path);
            let (parts, ()) = request.body(()).expect("a request").into_parts();
            assert_eq!(
                cost_of(&rules, &parts.method, &RequestPath::of(&parts)),
                cost,
                "{path}"
            );
        }
    }
}
