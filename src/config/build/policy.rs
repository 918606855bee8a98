//! The policies of a document, made by the builder methods of `Policy`.

use super::{Build, conditions::method, listed, with};
use crate::{
    charge::ChargeTime,
    config::{
        document::{
            policy::{ChargeSection, CostSection, KeySection, PolicySection},
            store_error::OnStoreErrorSection,
        },
        text::{parse_key, parse_strategy},
        tree::path::Path,
    },
    error::ConfigError,
    extract::KeyExtractor,
    policy::{CostRules, Policy, stand_in, validate_range},
    setting::Code,
    strategy::Lease,
};

/// The timeout of a `quota_lookup` that has none.
const DEFAULT_LOOKUP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(50);

impl Build<'_> {
    /// The policies, in the order of the text. A setting that can't be read is noted and left out. What a builder would reject is
    /// found afterwards, by [`LimiterBuilder::validate`](crate::LimiterBuilder), when all policies are known.
    pub(super) fn policies(&mut self) -> Vec<Policy> {
        let root = Path::default().key("policies");
        let document = self.document;
        let sections = document.policies.iter();
        let policies = sections.map(|(name, section)| self.policy(&root.key(name), name, section));
        let policies = policies.collect();
        self.check_candidates();
        policies
    }

    /// Checks that each `shadow_of` names another policy, which is enforced.
    fn check_candidates(&mut self) {
        let document = self.document;
        for (name, section) in document.policies.iter() {
            let Some(live) = &section.shadow_of else {
                continue;
            };
            let is_live = document.policies.get(live).is_some_and(|live| {
                live.shadow != Some(true)
                    && live.shadow_of.is_none()
                    && live.block_list != Some(true)
            });
            if !is_live {
                let path = Path::default().key("policies").key(name).key("shadow_of");
                let others = document.policies.iter().map(|(other, _)| other);
                let others = listed(others.filter(|other| *other != name));
                let expected = format!("the name of an enforced policy; there are {others}");
                self.found(&path, format!("{live:?}"), expected);
            }
        }
    }

    fn policy(&mut self, path: &Path, name: &str, section: &PolicySection) -> Policy {
        let mut policy = match (section.quota, section.block_list) {
            (_, Some(true)) => Policy::block_list(name),
            (Some(quota), _) => Policy::new(name, quota),
            // Noted already by `missing_values`. The other settings are still checked.
            (None, _) => Policy::new(name, stand_in()),
        };
        let mut knows_strategy = true;
        if let Some(text) = &section.strategy {
            let strategy = parse_strategy(text, &self.registry);
            match self.value(&path.key("strategy"), strategy) {
                // It may not be able to count the stand-in for a missing quota.
                Some(_) if section.quota.is_none() && section.block_list != Some(true) => {}
                Some(strategy) => policy = policy.counted_by(Code::from(strategy)),
                None => knows_strategy = false,
            }
        }
        policy = self.set_keys(path, section, policy);
        if let Some(lease) = &section.lease {
            let lease = with(Lease::max_units(lease.max_units), lease.ttl, Lease::ttl);
            match knows_strategy {
                true => policy = policy.lease(lease),
                // It may fit the strategy that was meant.
                false => validate_range(&lease, &mut |invalid| {
                    self.found_by_builder(&ConfigError::of(name, invalid));
                }),
            }
        }
        policy = self.set_quotas_by_request(path, section, policy);
        policy = self.set_cost(path, section, policy);
        policy = self.set_charge(path, section, policy);
        policy = policy.conditions(self.conditions(path, &section.skip, &section.only));
        if section.shadow == Some(true) {
            if section.shadow_of.is_some() {
                let found = "true together with shadow_of";
                self.found(&path.key("shadow"), found, "one of them");
            }
            policy = policy.shadow();
        }
        policy = with(policy, section.shadow_of.as_deref(), Policy::shadow_of);
        let action = section.on_store_error.as_ref();
        let action = action.map(OnStoreErrorSection::action);
        with(policy, action, Policy::on_store_error)
    }

    fn set_keys(&mut self, path: &Path, section: &PolicySection, mut policy: Policy) -> Policy {
        if section.by_hand == Some(true) {
            if section.key.is_some() {
                let found = "a key together with by_hand";
                self.found(&path.key("key"), found, "one of them");
            }
            policy = policy.by_hand();
        } else {
            let key = self.key(&path.key("key"), section.key.as_ref());
            policy = with(policy, key, Policy::keyed_by);
        }
        let caller = self.key(&path.key("caller"), section.caller.as_ref());
        policy = with(policy, caller, Policy::called_by);
        with(policy, section.missing_key, Policy::missing_key)
    }

    /// The extractor of a key.
    fn key(&mut self, path: &Path, key: Option<&KeySection>) -> Option<Code<dyn KeyExtractor>> {
        let text = match key? {
            KeySection::One(text) => text.clone(),
            KeySection::Tuple(texts) => format!("[{}]", texts.join(", ")),
        };
        let extractor = parse_key(&text, &self.registry);
        self.value(path, extractor).map(Code::from)
    }

    fn set_cost(&mut self, path: &Path, section: &PolicySection, policy: Policy) -> Policy {
        let path = path.key("cost");
        match &section.cost {
            None => policy,
            Some(CostSection::Units(units)) => policy.cost(*units),
            Some(CostSection::Name(text)) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                let found = format!("the text {text:?}");
                let expected = "a whole number without quotes, such as 10, or a registered name";
                self.found(&path, found, expected);
                policy
            }
            Some(CostSection::Name(name)) => {
                let cost = self.registry.find_cost(name);
                with(policy, self.value(&path, cost), Policy::cost_from)
            }
            Some(CostSection::Rules(rules)) => {
                let mut costs = CostRules::default();
                for (index, rule) in rules.iter().enumerate() {
                    let path = path.index(index).key("method");
                    let named = rule.method.as_ref();
                    let named = named.and_then(|text| self.value(&path, method(text)));
                    costs.add(named, rule.path.as_deref(), rule.cost);
                }
                policy.cost_rules(costs)
            }
        }
    }

    fn set_charge(&mut self, path: &Path, section: &PolicySection, mut policy: Policy) -> Policy {
        let by_outcome = match &section.charge {
            None | Some(ChargeSection::Arrival) => None,
            Some(ChargeSection::After(outcome)) => Some((ChargeTime::Response, "after", outcome)),
            Some(ChargeSection::RefundUnless(outcome)) => {
                Some((ChargeTime::Reserve, "refund_unless", outcome))
            }
        };
        if let Some((when, field, outcome)) = by_outcome {
            let outcome = self.registry.find_outcome(outcome);
            let outcome = self.value(&path.key("charge").key(field), outcome);
            policy = with(policy, outcome, |policy, outcome| {
                policy.charge_outcomes(when, outcome)
            });
        }
        policy = with(policy, section.charge_rejected, Policy::charge_rejected);
        with(policy, section.charge_dropped, Policy::charge_dropped)
    }

    fn set_quotas_by_request(
        &mut self,
        path: &Path,
        section: &PolicySection,
        mut policy: Policy,
    ) -> Policy {
        let ways = [
            ("tier", section.tier.is_some()),
            ("quota_with", section.quota_with.is_some()),
            ("quota_lookup", section.quota_lookup.is_some()),
        ];
        let mut set = ways.into_iter().filter(|(_, is_set)| *is_set);
        if let (Some((first, _)), Some((second, _))) = (set.next(), set.next()) {
            let found = format!("{second} together with {first}");
            self.found(&path.key(second), found, "one of them");
        }
        // Those of tiers come after them: see `path_of`.
        policy = policy.tier_quotas(section.tier_quotas.iter().copied());
        let mut tier = None;
        match (&section.tier, section.tiers.is_empty()) {
            (None, true) => {}
            (None, false) => {
                let expected = "the registered name of the function that finds a request's tier";
                self.found(&path.key("tier"), "nothing", expected);
            }
            (Some(_), true) => {
                let expected = "the quota of each tier";
                self.found(&path.key("tiers"), "nothing", expected);
            }
            (Some(name), false) => {
                let found = self.registry.find_tier(name);
                tier = self.value(&path.key("tier"), found);
            }
        }
        let tiers = section.tiers.iter();
        policy = match tier {
            Some(tier) => {
                let tiers = tiers.map(|(name, quota)| (name.to_owned(), *quota));
                policy.tiers_from(tier, tiers.collect())
            }
            None => policy.tier_quotas(tiers.map(|(_, quota)| *quota)),
        };
        if let Some(name) = &section.quota_with {
            let quota = self.registry.find_quota(name);
            let quota = self.value(&path.key("quota_with"), quota);
            policy = with(policy, quota, Policy::quota_from);
        }
        if let Some(lookup) = &section.quota_lookup {
            let look_up = self.registry.find_quota_lookup(&lookup.name);
            let look_up = self.value(&path.key("quota_lookup").key("name"), look_up);
            let timeout = lookup.timeout.unwrap_or(DEFAULT_LOOKUP_TIMEOUT);
            policy = with(policy, look_up, |policy, look_up| {
                policy.quota_looked_up(timeout, look_up)
            });
        }
        policy
    }
}
