//! Policies.

use super::{
    Build,
    conditions::{method, valid_path},
    listed,
};
use crate::{
    charge::ChargeTime,
    config::{
        document::policy::{ChargeSection, CostRule, CostSection, KeySection, PolicySection},
        text::{parse_key, parse_strategy},
        tree::path::Path,
    },
    error::ConfigError,
    extract::KeyExtractor,
    limiter::Limiter,
    policy::{CostRules, Policy},
    quota::Quota,
    setting::Code,
    store::memory::MemoryStore,
    strategy::{Lease, Strategy},
};

/// How long a quota is looked up, unless the document says so.
const DEFAULT_LOOKUP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(50);

/// A quota in place of one that is a mistake, which almost any strategy counts.
fn stand_in() -> Quota {
    Quota::requests(1_000).per_minute()
}

/// A policy that is set up field by field, so that a mistake is found at its field.
struct Fields<'b, 'a> {
    build: &'b mut Build<'a>,
    path: Path,
    policy: Policy,
    store: &'b MemoryStore,
}

impl Build<'_> {
    /// The policies, in the order of the text. Each has those of its settings that are no mistakes.
    pub(super) fn policies(&mut self) -> Vec<Policy> {
        let root = Path::default().key("policies");
        let store = MemoryStore::new();
        let mut policies = Vec::new();
        for (name, section) in self.document.policies.iter() {
            let path = root.key(name);
            let policy = match (section.quota, section.block_list) {
                (_, Some(true)) => Policy::block_list(name),
                (Some(quota), _) => Policy::new(name, quota),
                // Known to be missing. The other settings are checked.
                (None, _) => Policy::new(name, stand_in()),
            };
            if self.value(&path, policy.validate_name()).is_none() {
                continue;
            }
            let mut fields = Fields {
                build: self,
                path,
                policy,
                store: &store,
            };
            fields.set_all(section);
            policies.push(fields.policy);
        }
        self.check_candidates();
        policies
    }

    /// Checks that candidates are candidates of other policies.
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

    /// The extractor of a key.
    fn key(&mut self, path: &Path, key: &KeySection) -> Option<Code<dyn KeyExtractor>> {
        let text = match key {
            KeySection::One(text) => text.clone(),
            KeySection::Tuple(texts) => format!("[{}]", texts.join(", ")),
        };
        let extractor = parse_key(&text, &self.registry);
        self.value(path, extractor).map(Code::from)
    }
}

impl Fields<'_, '_> {
    fn set_all(&mut self, section: &PolicySection) {
        self.quota(section);
        self.keys(section);
        // Before the tiers and the cost, each of which has to fit a lease.
        self.lease(section);
        // Before the cost, which a tier may allow.
        self.quotas_by_request(section);
        self.cost(section);
        self.charge(section);
        let rules = self
            .build
            .conditions(&self.path, &section.skip, &section.only);
        self.policy = self.policy.clone().conditions(rules);
        if section.shadow == Some(true) {
            if section.shadow_of.is_some() {
                let found = "true together with shadow_of";
                self.build
                    .found(&self.path.key("shadow"), found, "one of them");
            }
            self.set("shadow", Policy::shadow);
        }
        if let Some(live) = &section.shadow_of {
            // A candidate alone is a shadow.
            self.set("shadow_of", Policy::shadow);
            self.policy = self.policy.clone().shadow_of(live.as_str());
        }
        if let Some(action) = &section.on_store_error {
            let path = self.path.key("on_store_error");
            if let Some(action) = self.build.on_store_error(&path, action) {
                self.set("on_store_error", |policy| policy.on_store_error(action));
            }
        }
    }

    /// Changes the policy, unless the result can't be built.
    fn set(&mut self, field: &str, change: impl FnOnce(Policy) -> Policy) {
        self.set_at(&self.path.key(field), change);
    }

    fn set_at(&mut self, path: &Path, change: impl FnOnce(Policy) -> Policy) {
        let changed = change(self.policy.clone());
        let checked = check(&changed, self.store);
        if self.build.checked(path, checked).is_some() {
            self.policy = changed;
        }
    }

    fn quota(&mut self, section: &PolicySection) {
        let strategy = section.strategy.as_ref().and_then(|text| {
            let strategy = parse_strategy(text, &self.build.registry);
            let strategy = self.build.value(&self.path.key("strategy"), strategy)?;
            Some(Code::<dyn Strategy>::from(strategy))
        });
        if section.quota.is_none() && section.block_list != Some(true) {
            return;
        }
        match strategy {
            Some(strategy) => {
                let counted = self.policy.clone().counted_by(strategy);
                let is_by_quota = check(&self.policy, self.store).is_err();
                let field = match check(&counted, self.store) {
                    Ok(()) => "",
                    Err(_) if is_by_quota => "quota",
                    Err(_) => "strategy",
                };
                match field {
                    "" => self.policy = counted,
                    field => self.set(field, |_| counted),
                }
            }
            // The strategy is a mistake.
            None if section.strategy.is_some() => {}
            None => {
                let counted = match self.strategy_of_live(section) {
                    Some(strategy) => self.policy.clone().counted_by(strategy),
                    None => self.policy.clone(),
                };
                self.set("quota", |_| counted);
            }
        }
        if check(&self.policy, self.store).is_err() {
            // It is a mistake. The other settings are checked with a quota that any strategy counts.
            self.policy = Policy::new(self.policy.name(), stand_in());
        }
    }

    /// The strategy that a candidate takes from its live policy.
    fn strategy_of_live(&self, section: &PolicySection) -> Option<Code<dyn Strategy>> {
        let policies = &self.build.document.policies;
        let live = policies.get(section.shadow_of.as_ref()?)?;
        let is_concurrent =
            |section: &PolicySection| section.quota.map(|quota| quota.is_concurrent());
        let text = live
            .strategy
            .as_ref()
            .filter(|_| is_concurrent(live) == is_concurrent(section))?;
        let strategy = parse_strategy(text, &self.build.registry).ok()?;
        Some(Code::from(strategy))
    }

    fn keys(&mut self, section: &PolicySection) {
        if section.by_hand == Some(true) {
            if section.key.is_some() {
                let found = "a key together with by_hand";
                self.build
                    .found(&self.path.key("key"), found, "one of them");
            }
            self.set("by_hand", Policy::by_hand);
        } else if let Some(key) = &section.key
            && let Some(key) = self.build.key(&self.path.key("key"), key)
        {
            self.policy = self.policy.clone().keyed_by(key);
        }
        if let Some(caller) = &section.caller
            && let Some(caller) = self.build.key(&self.path.key("caller"), caller)
        {
            self.policy = self.policy.clone().called_by(caller);
        }
        if let Some(missing) = section.missing_key {
            self.set("missing_key", |policy| policy.missing_key(missing));
        }
    }

    fn lease(&mut self, section: &PolicySection) {
        let Some(leases) = &section.lease else {
            return;
        };
        let path = self.path.key("lease");
        let mut lease = Lease::max_units(leases.max_units);
        let units = lease.validate();
        let units = self.build.value(&path.key("max_units"), units);
        if let Some(ttl) = leases.ttl {
            lease = lease.ttl(ttl);
        }
        let ttl = self.build.value(&path.key("ttl"), lease.validate_ttl());
        // A strategy that is a mistake may be one that can be leased.
        let strategy = section.strategy.as_ref();
        let is_known =
            strategy.is_none_or(|text| parse_strategy(text, &self.build.registry).is_ok());
        if units.is_some() && ttl.is_some() && is_known {
            self.set("lease", |policy| policy.lease(lease));
        }
    }

    fn cost(&mut self, section: &PolicySection) {
        match &section.cost {
            None => {}
            Some(CostSection::Units(units)) => self.set("cost", |policy| policy.cost(*units)),
            Some(CostSection::Name(text)) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                let found = format!("the text {text:?}");
                let expected = "a whole number without quotes, such as 10, or a registered name";
                self.build.found(&self.path.key("cost"), found, expected);
            }
            Some(CostSection::Name(name)) => {
                let cost = self.build.registry.find_cost(name);
                if let Some(cost) = self.build.value(&self.path.key("cost"), cost) {
                    self.set("cost", |policy| policy.cost_from(cost));
                }
            }
            Some(CostSection::Rules(rules)) => {
                let mut costs = CostRules::default();
                for (index, rule) in rules.iter().enumerate() {
                    self.cost_rule(&self.path.key("cost").index(index), rule, &mut costs);
                }
                self.set("cost", |policy| policy.cost_rules(costs));
            }
        }
    }

    fn cost_rule(&mut self, path: &Path, rule: &CostRule, costs: &mut CostRules) {
        let name = rule.method.as_ref();
        let named = name.map(|text| self.build.value(&path.key("method"), method(text)));
        let at = rule.path.as_ref();
        let at = at.map(|text| self.build.value(&path.key("path"), valid_path(text)));
        if !matches!(named, Some(None)) && !matches!(at, Some(None)) {
            let alike = check(&self.policy.clone().cost(rule.cost), self.store);
            self.build.checked(&path.key("cost"), alike);
            costs.add(named.flatten(), rule.path.as_deref(), rule.cost);
        }
    }

    fn charge(&mut self, section: &PolicySection) {
        let (when, field, outcome) = match &section.charge {
            None | Some(ChargeSection::Arrival) => (ChargeTime::Arrival, "", ""),
            Some(ChargeSection::After(outcome)) => (ChargeTime::Response, "after", &**outcome),
            Some(ChargeSection::RefundUnless(outcome)) => {
                (ChargeTime::Reserve, "refund_unless", &**outcome)
            }
        };
        if when != ChargeTime::Arrival {
            let path = self.path.key("charge").key(field);
            let outcome = self.build.registry.find_outcome(outcome);
            if let Some(outcome) = self.build.value(&path, outcome) {
                self.set("charge", |policy| policy.charge_outcomes(when, outcome));
            }
        }
        if let Some(charge) = section.charge_rejected {
            self.set("charge_rejected", |policy| policy.charge_rejected(charge));
        }
        if let Some(charge) = section.charge_dropped {
            self.set("charge_dropped", |policy| policy.charge_dropped(charge));
        }
    }

    fn quotas_by_request(&mut self, section: &PolicySection) {
        let ways = [
            ("tier", section.tier.is_some()),
            ("quota_with", section.quota_with.is_some()),
            ("quota_lookup", section.quota_lookup.is_some()),
        ];
        let mut set = ways.into_iter().filter(|(_, is_set)| *is_set);
        if let (Some((first, _)), Some((second, _))) = (set.next(), set.next()) {
            let found = format!("{second} together with {first}");
            self.build
                .found(&self.path.key(second), found, "one of them");
        }
        if !section.tier_quotas.is_empty() {
            self.set("tier_quotas", |policy| {
                policy.tier_quotas(section.tier_quotas.iter().copied())
            });
        }
        match (&section.tier, section.tiers.is_empty()) {
            (None, true) => {}
            (None, false) => {
                let expected = "the registered name of the function that finds a request's tier";
                self.build
                    .found(&self.path.key("tier"), "nothing", expected);
            }
            (Some(_), true) => {
                let expected = "the quota of each tier";
                self.build
                    .found(&self.path.key("tiers"), "nothing", expected);
            }
            (Some(name), false) => {
                let tier = self.build.registry.find_tier(name);
                let mut tiers = Vec::new();
                for (name, quota) in section.tiers.iter() {
                    let one = check(&self.policy.clone().tier_quotas([*quota]), self.store);
                    let path = self.path.key("tiers").key(name);
                    if self.build.checked(&path, one).is_some() {
                        tiers.push((name.to_owned(), *quota));
                    }
                }
                if let Some(tier) = self.build.value(&self.path.key("tier"), tier) {
                    self.set("tiers", |policy| policy.tiers_from(tier, tiers));
                }
            }
        }
        if let Some(name) = &section.quota_with {
            let quota = self.build.registry.find_quota(name);
            if let Some(quota) = self.build.value(&self.path.key("quota_with"), quota) {
                self.set("quota_with", |policy| policy.quota_from(quota));
            }
        }
        if let Some(lookup) = &section.quota_lookup {
            let look_up = self.build.registry.find_quota_lookup(&lookup.name);
            let path = self.path.key("quota_lookup");
            let timeout = lookup.timeout.unwrap_or(DEFAULT_LOOKUP_TIMEOUT);
            if let Some(look_up) = self.build.value(&path.key("name"), look_up) {
                self.set_at(&path.key("timeout"), |policy| {
                    policy.quota_looked_up(timeout, look_up)
                });
            }
        }
    }
}

/// An error of a limiter with this policy alone.
fn check(policy: &Policy, store: &MemoryStore) -> Result<(), ConfigError> {
    let builder = Limiter::builder().store(store.clone());
    builder.policy(policy.clone()).build().map(drop)
}
