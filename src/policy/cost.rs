//! What requests cost. `policy/validate.rs` checks costs against the quota.

use http::{Method, request::Parts};
use serde::{Deserialize, Serialize};

use super::skip::{
    MethodName,
    path::{PathPattern, RequestPath},
};
use crate::setting::{Slot, values::forms};

pub(crate) type CostFn = dyn Fn(&Parts) -> u64 + Send + Sync;

forms! {
    /// The units that a request costs.
    pub enum Cost, "a number of units, a registered name, or an array of rules such as { path = \"/upload/*\", cost = 10 }" {
        /// The same for each request. A request that costs 0 is always admitted.
        Units(u64) from number;
        /// What a function returns for the request's head.
        With(Slot<CostFn>) from text;
        /// The cost of the first rule that matches its method and path, or else 1.
        Rules(Vec<CostRule>) from array;
    }
}

/// The cost of requests with a method and a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CostRule {
    /// The requests' method. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "config-schema", schemars(with = "Option<String>"))]
    pub method: Option<MethodName>,
    /// The requests' path, or with `/*` at its end all paths beneath it. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathPattern>,
    /// The units that such a request costs.
    pub cost: u64,
}

impl Cost {
    pub(super) fn of(&self, parts: &Parts, path: &RequestPath<'_>) -> u64 {
        match self {
            Self::Units(units) => *units,
            Self::With(cost) => cost.code().map_or(1, |cost| cost(parts)),
            Self::Rules(rules) => cost_of(rules, &parts.method, path),
        }
    }
}

/// The cost of the first rule that matches, or else 1. A path that servers read differently costs the most of what it may cost.
fn cost_of(rules: &[CostRule], method: &Method, path: &RequestPath<'_>) -> u64 {
    let of_method = |rule: &&CostRule| rule.method.as_ref().is_none_or(|own| own.0 == *method);
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
            method: method.map(MethodName),
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
