//! The policies of a document.

use std::time::Duration;

use http::Method;

use super::Build;
use crate::{
    config::{
        document::policy::{
            ChargeSection, ConditionsSection, CostRuleSection, CostSection, KeySection,
            LeaseSection, PolicyDocument,
        },
        forms::{DURATION, QUOTA},
        path::Path,
        text::{parse_key, parse_strategy},
    },
    error::InvalidValue,
    extract::KeyExtractor,
    policy::Policy,
    quota::{DurationText, Quota},
    settings::{Charge, Conditions, Cost, CostRule, PathPattern, QuotaByRequest},
    strategy::Lease,
};

/// The quota of a policy whose own is a mistake. The settings that depend on the quota are left out then.
const STAND_IN: Quota = Quota::requests(1_000).per_minute();

impl Build<'_> {
    /// The policies, in the order of the text. A setting that is a mistake is noted and left out. What a builder would reject is
    /// found afterwards, when all policies are known.
    pub(super) fn policies(&mut self) -> Vec<Policy> {
        let root = Path::default().key("policies");
        let policies = self.document.policies.iter();
        let policies =
            policies.map(|(name, document)| self.policy(&root.key(name), name, document));
        policies.collect()
    }

    fn policy(&mut self, path: &Path, name: &str, document: &PolicyDocument) -> Policy {
        let quota = document.quota.as_ref();
        let quota = quota.and_then(|text| self.quota(&path.key("quota"), text));
        let mut policy = if document.block_list == Some(true) {
            Policy::block_list(name)
        } else {
            Policy::new(name, quota.unwrap_or(STAND_IN))
        };
        let mut knows_limit = quota.is_some() || document.block_list == Some(true);
        if let Some(text) = &document.strategy {
            let strategy = parse_strategy(text, &self.registry);
            match self.value(&path.key("strategy"), strategy) {
                Some(strategy) if knows_limit => policy = policy.strategy(strategy),
                Some(_) => {}
                None => knows_limit = false,
            }
        }
        if document.by_hand == Some(true) {
            policy = policy.by_hand();
            if document.key.is_some() {
                let found = "a key together with by_hand";
                self.found(&path.key("key"), found, "one of them");
            }
        } else if let Some(key) = self.extractor(&path.key("key"), document.key.as_ref()) {
            policy = policy.key(key);
        }
        if let Some(caller) = self.extractor(&path.key("caller"), document.caller.as_ref()) {
            policy = policy.caller(caller);
        }
        if let Some(missing_key) = document.missing_key {
            policy = policy.missing_key(missing_key.into());
        }
        if let Some(cost) = &document.cost
            && let Some(cost) = self.cost(&path.key("cost"), cost)
        {
            policy = policy.cost_by(cost);
        }
        if let Some(charge) = &document.charge
            && let Some(charge) = self.charge(&path.key("charge"), charge)
        {
            policy = policy.charge_by(charge);
        }
        if let Some(charges) = document.charge_rejected {
            policy = policy.charge_rejected(charges);
        }
        if let Some(charges) = document.charge_dropped {
            policy = policy.charge_dropped(charges);
        }
        let quotas = self.quotas_by_request(path, document, policy.clone());
        if knows_limit {
            policy = quotas;
        }
        if let Some(skip) = self.conditions(&path.key("skip"), document.skip.as_ref()) {
            policy = policy.skip(skip);
        }
        if let Some(only) = self.conditions(&path.key("only"), document.only.as_ref()) {
            policy = policy.only(only);
        }
        if document.shadow == Some(true) {
            policy = policy.shadow();
        }
        if let Some(action) = document.on_store_error {
            policy = policy.on_store_error(action);
        }
        if let Some(lease) = &document.lease
            && let Some(lease) = self.lease(&path.key("lease"), lease)
            && knows_limit
        {
            policy = policy.lease(lease);
        }
        if !knows_limit {
            // Whether the quota allows it is not known.
            policy = policy.cost(1);
        }
        policy
    }

    fn quota(&mut self, path: &Path, text: &str) -> Option<Quota> {
        let quota = text
            .parse::<Quota>()
            .map_err(|_| InvalidValue::new(format!("{text:?}"), QUOTA));
        self.value(path, quota)
    }

    pub(super) fn duration(&mut self, path: &Path, text: &str) -> Option<Duration> {
        let duration = text.parse().map(|DurationText(duration)| duration);
        let duration = duration.map_err(|_| InvalidValue::new(format!("{text:?}"), DURATION));
        self.value(path, duration)
    }

    fn extractor(
        &mut self,
        path: &Path,
        key: Option<&KeySection>,
    ) -> Option<impl KeyExtractor + use<>> {
        let key = parse_key(&key?.to_string(), &self.registry);
        self.value(path, key)
    }

    fn cost(&mut self, path: &Path, cost: &CostSection) -> Option<Cost> {
        Some(match cost {
            CostSection::Units(units) => Cost::Units(*units),
            CostSection::With(text) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                let expected = "a whole number without quotes, such as 10, or a registered name";
                self.found(path, format!("the text {text:?}"), expected);
                return None;
            }
            CostSection::With(name) => {
                let cost = self.registry.find_cost(name);
                Cost::With(self.value(path, cost)?)
            }
            CostSection::Rules(rules) => {
                let rules = rules.iter().enumerate();
                let rules = rules.map(|(index, rule)| self.cost_rule(&path.index(index), rule));
                Cost::Rules(rules.collect())
            }
        })
    }

    fn cost_rule(&mut self, path: &Path, rule: &CostRuleSection) -> CostRule {
        let mut read = CostRule::new(rule.cost);
        let method = rule.method.as_ref();
        read.method = method.and_then(|text| self.method(&path.key("method"), text));
        read.path = rule.path.as_deref().map(PathPattern::new);
        read
    }

    fn method(&mut self, path: &Path, text: &str) -> Option<Method> {
        let method = Method::from_bytes(text.as_bytes());
        let method = method.map_err(|_| {
            InvalidValue::new(format!("the method {text:?}"), "a method such as \"GET\"")
        });
        self.value(path, method)
    }

    fn charge(&mut self, path: &Path, charge: &ChargeSection) -> Option<Charge> {
        let mut outcome = |field: &str, name: &str| {
            let outcome = self.registry.find_outcome(name);
            self.value(&path.key(field), outcome)
        };
        Some(match charge {
            ChargeSection::Arrival => Charge::Arrival,
            ChargeSection::After(name) => Charge::After(outcome("after", name)?),
            ChargeSection::RefundUnless(name) => {
                Charge::RefundUnless(outcome("refund_unless", name)?)
            }
        })
    }

    fn quotas_by_request(
        &mut self,
        path: &Path,
        document: &PolicyDocument,
        mut policy: Policy,
    ) -> Policy {
        // The builder names a quota by its index, so that one which is a mistake has another in its place.
        let mut declared = Vec::new();
        for (index, text) in document.tier_quotas.iter().enumerate() {
            let quota = self.quota(&path.key("tier_quotas").index(index), text);
            declared.push(quota.unwrap_or(policy.quota()));
        }
        let mut quotas = Vec::new();
        for (name, text) in &document.tiers {
            let quota = self.quota(&path.key("tiers").key(name), text);
            quotas.push((name.clone(), quota.unwrap_or(policy.quota())));
        }
        match (&document.tier, quotas.is_empty()) {
            (None, false) => {
                let expected = "the registered name of the function that finds a request's tier";
                self.found(&path.key("tier"), "nothing", expected);
            }
            (Some(_), true) => {
                self.found(&path.key("tiers"), "nothing", "the quota of each tier");
            }
            _ => {}
        }
        if document.tier.is_some() && document.quota_with.is_some() {
            let found = "quota_with together with tier";
            self.found(&path.key("quota_with"), found, "one of them");
        }
        let find = document.tier.as_ref().and_then(|name| {
            let find = self.registry.find_tier(name);
            self.value(&path.key("tier"), find)
        });
        let function = document.quota_with.as_ref().and_then(|name| {
            let function = self.registry.find_quota(name);
            self.value(&path.key("quota_with"), function)
        });
        policy = policy.tier_quotas(declared);
        match (find, function) {
            (Some(find), _) => policy.quota_by(QuotaByRequest::Tier { find, quotas }),
            (None, function) => {
                policy = policy.tier_quotas(quotas.into_iter().map(|(_, quota)| quota));
                match function {
                    Some(function) => policy.quota_by(QuotaByRequest::Function(function)),
                    None => policy,
                }
            }
        }
    }

    /// Conditions, of which there must be one: an empty table would mean all requests, under `only` too.
    pub(super) fn conditions(
        &mut self,
        path: &Path,
        document: Option<&ConditionsSection>,
    ) -> Option<Conditions> {
        let ConditionsSection {
            paths,
            methods,
            with,
        } = document?;
        let lists = [("paths", paths), ("methods", methods), ("with", with)];
        if lists.iter().all(|(_, list)| list.is_none()) {
            let expected = "at least one of paths, methods and with, or none of the field";
            self.found(path, "an empty table", expected);
        }
        for (name, list) in lists {
            if list.as_ref().is_some_and(Vec::is_empty) {
                let expected = "at least one entry, or none of the field";
                self.found(&path.key(name), "an empty array", expected);
            }
        }
        let mut conditions = Conditions::default();
        let paths = paths.iter().flatten();
        conditions.paths = paths.map(|text| PathPattern::new(text)).collect();
        for (index, text) in methods.iter().flatten().enumerate() {
            let method = self.method(&path.key("methods").index(index), text);
            // The builder names a method by its index.
            conditions.methods.push(method.unwrap_or(Method::GET));
        }
        for (index, name) in with.iter().flatten().enumerate() {
            let condition = self.registry.find_condition(name);
            let condition = self.value(&path.key("with").index(index), condition);
            conditions.with.extend(condition);
        }
        Some(conditions)
    }

    fn lease(&mut self, path: &Path, document: &LeaseSection) -> Option<Lease> {
        let lease = Lease::max_units(document.max_units);
        match &document.ttl {
            None => Some(lease),
            Some(text) => Some(lease.ttl(self.duration(&path.key("ttl"), text)?)),
        }
    }
}
