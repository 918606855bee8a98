//! The policies of a document: its settings with code in their slots.

use super::Build;
use crate::{
    config::{
        Registry,
        text::{parse_key, parse_strategy},
        tree::path::Path,
    },
    error::{ConfigError, InvalidValue},
    extract::KeyExtractor,
    policy::{
        Policy, PolicySettings, charging::Charge, cost::Cost, skip::Conditions, stand_in,
        validate_range,
    },
    setting::Slot,
    strategy::Strategy,
};

impl Build<'_> {
    /// The policies, in the order of the text. A setting that can't be read is noted and left out. What a builder would reject is
    /// found afterwards, by [`LimiterBuilder::validate`](crate::limiter::LimiterBuilder), when all policies are known.
    pub(super) fn policies(&mut self) -> Vec<Policy> {
        let root = Path::default().key("policies");
        let document = self.document;
        let sections = document.policies.iter();
        let policies = sections.map(|(name, section)| self.policy(&root.key(name), name, section));
        policies.collect()
    }

    /// A policy with code in each slot. A slot whose text names none is noted and left out.
    fn policy(&mut self, path: &Path, name: &str, settings: &PolicySettings) -> Policy {
        let mut settings = settings.clone();
        // A missing one is noted already by `missing_values`. The other settings are still checked.
        let lacks_quota = settings.quota.is_none() && settings.block_list != Some(true);
        if lacks_quota {
            settings.quota = Some(stand_in());
        }
        if settings.block_list == Some(true) {
            settings.quota = None;
        }
        let knows_strategy = self.fill(&path.key("strategy"), &mut settings.strategy, strategy);
        if lacks_quota {
            // The strategy may not be able to count the quota that stands in for the missing one.
            settings.strategy = None;
        }
        self.fill_keys(path, &mut settings);
        if !knows_strategy && let Some(lease) = settings.lease.take() {
            // The strategy is not known, so only the lease's ranges are checked.
            validate_range(&lease, &mut |invalid| {
                self.found_by_builder(&ConfigError::of(name, invalid));
            });
        }
        self.fill_quotas_by_request(path, &mut settings);
        self.fill_cost(&path.key("cost"), &mut settings);
        self.fill_charge(&path.key("charge"), &mut settings);
        for (field, conditions) in [("skip", &mut settings.skip), ("only", &mut settings.only)] {
            self.fill_conditions(&path.key(field), conditions);
        }
        Policy::with_settings(name, settings)
    }

    /// Puts the code into a slot to which its text refers. If there is none, notes a mistake, sets the slot to `None` and returns
    /// false.
    pub(super) fn fill<F: ?Sized>(
        &mut self,
        path: &Path,
        slot: &mut Option<Slot<F>>,
        find: impl FnOnce(&Registry, &str) -> Result<Slot<F>, InvalidValue>,
    ) -> bool {
        let Some(named) = slot.take() else {
            return true;
        };
        let found = find(&self.registry, named.text_or_code());
        *slot = self.value(path, found);
        slot.is_some()
    }

    fn fill_keys(&mut self, path: &Path, settings: &mut PolicySettings) {
        if settings.by_hand == Some(true) && settings.key.take().is_some() {
            let found = "a key together with by_hand";
            self.found(&path.key("key"), found, "one of them");
        }
        self.fill(&path.key("key"), &mut settings.key, extractor);
        self.fill(&path.key("caller"), &mut settings.caller, extractor);
    }

    fn fill_cost(&mut self, path: &Path, settings: &mut PolicySettings) {
        let Some(Cost::With(slot)) = &settings.cost else {
            return;
        };
        let text = slot.text_or_code();
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let expected = "a whole number without quotes, such as 10, or a registered name";
            self.found(path, format!("the text {text:?}"), expected);
            settings.cost = None;
        } else {
            let cost = self.registry.find_cost(text);
            settings.cost = self.value(path, cost).map(Cost::With);
        }
    }

    fn fill_charge(&mut self, path: &Path, settings: &mut PolicySettings) {
        let (field, outcome, charge): (_, _, fn(_) -> Charge) = match &settings.charge {
            None | Some(Charge::Arrival) => return,
            Some(Charge::After(outcome)) => ("after", outcome, Charge::After),
            Some(Charge::RefundUnless(outcome)) => ("refund_unless", outcome, Charge::RefundUnless),
        };
        let outcome = self.registry.find_outcome(outcome.text_or_code());
        settings.charge = self.value(&path.key(field), outcome).map(charge);
    }

    fn fill_quotas_by_request(&mut self, path: &Path, settings: &mut PolicySettings) {
        if settings.tier.is_some() && settings.quota_with.is_some() {
            let found = "quota_with together with tier";
            self.found(&path.key("quota_with"), found, "one of them");
        }
        match (&settings.tier, settings.tiers.is_empty()) {
            (None, false) => {
                let expected = "the registered name of the function that finds a request's tier";
                self.found(&path.key("tier"), "nothing", expected);
            }
            (Some(_), true) => {
                let expected = "the quota of each tier";
                self.found(&path.key("tiers"), "nothing", expected);
                settings.tier = None;
            }
            _ => {}
        }
        self.fill(&path.key("tier"), &mut settings.tier, Registry::find_tier);
        let quota_with = &mut settings.quota_with;
        self.fill(&path.key("quota_with"), quota_with, Registry::find_quota);
    }

    /// Puts the code into the slots of conditions, at `path`.
    pub(super) fn fill_conditions(&mut self, path: &Path, conditions: &mut Conditions) {
        let named = std::mem::take(&mut conditions.with);
        for (index, condition) in named.iter().enumerate() {
            let path = path.key("with").index(index);
            let condition = self.registry.find_condition(condition.text_or_code());
            conditions.with.extend(self.value(&path, condition));
        }
    }
}

fn strategy(registry: &Registry, text: &str) -> Result<Slot<dyn Strategy>, InvalidValue> {
    Ok(Slot::shared_strategy(parse_strategy(text, registry)?))
}

fn extractor(registry: &Registry, text: &str) -> Result<Slot<dyn KeyExtractor>, InvalidValue> {
    let extractor = parse_key(text, registry)?;
    let text = extractor.config_text().map(|text| text.into_owned().into());
    Ok(Slot::shared(extractor, text))
}
