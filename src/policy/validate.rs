//! Checks of a policy's settings, and the rules by which its quotas can be counted.

use std::sync::Arc;

use super::{
    Policy,
    cost::{Cost, CostRule},
    on_store_error::OnStoreError,
    skip::{path::PathPattern, validate_method},
};
use crate::{
    error::InvalidValue,
    quota::{DurationText, MAX_CAPACITY, Quota},
    store::{Store, memory::local_rule},
    strategy::{Lease, Rule, Terms, TierRefills, built_in},
};

impl Policy {
    /// The strategy's rule for `quota`. An error if [`Units`](crate::store::Units) can't hold its costs and debts, or if its
    /// state format is another strategy's.
    pub(crate) fn bind(
        &self,
        quota: &Quota,
        refills: &TierRefills,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        let strategy = self.strategy_or_default();
        let own = self.quota();
        if quota.period() != own.period() && strategy.tiers_share_period() {
            return Err(InvalidValue::new(
                format!("{quota}, a tier whose period is not that of {own}"),
                "a tier of the same period, a policy of its own, Gcra or TokenBucket",
            ));
        }
        let terms = Terms {
            refills: refills.clone(),
            lease: self.lease_setting().copied(),
        };
        let rule = strategy.bind(quota, &terms)?;
        let info = rule.info();
        // Not by `==`: a rule adds to the lease how fast its units refill.
        let settings = |lease: Lease| (lease.most(), lease.lifetime());
        if terms.lease.is_some() && info.lease.map(settings) != terms.lease.map(settings) {
            let text = strategy.config_text();
            let strategy = text.unwrap_or_else(|| format!("{strategy:?}").into());
            return Err(InvalidValue::new(
                format!("a lease under {strategy}"),
                "a strategy that can be leased, such as Gcra or FixedWindow, or no lease",
            ));
        }
        if info.capacity > MAX_CAPACITY {
            return Err(InvalidValue::new(
                format!("{quota}, a capacity of {}", info.capacity),
                format!("a capacity of at most {MAX_CAPACITY}"),
            ));
        }
        built_in::check_state_format(&*rule)?;
        Ok(rule)
    }

    /// The rule for a quota on a store, if it can be counted there. The limit that is registered for that is dropped at once. The rule
    /// shares no refill times with those that count, so that quotas that are only tried change no debt.
    fn trial(
        &self,
        quota: &Quota,
        store: Option<&dyn Store>,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        let rule = self.bind(quota, &TierRefills::default())?;
        if let Some(store) = store {
            store.register(self.name(), rule.clone())?;
            if rule.info().permit_ttl.is_some() && store.keep_alive(&[]).is_none() {
                return Err(InvalidValue::new(
                    "an in-flight limit on a store that does not keep permits alive",
                    "a MemoryStore, a RedisStore or another store with Store::keep_alive",
                ));
            }
        }
        Ok(rule)
    }

    /// An error if the policy can't count another quota than its own. One whose burst refills within a lease is counted without
    /// leases.
    pub(crate) fn validate_other_quota(
        &self,
        quota: Quota,
        store: &dyn Store,
    ) -> Result<(), InvalidValue> {
        let leased = self.trial(&quota, Some(store));
        let rule = match self.lease_setting() {
            Some(_) => leased.or_else(|_| self.clone().without_lease().trial(&quota, Some(store))),
            None => leased,
        };
        rule.map(drop)
    }

    /// Reports each mistake in the settings but the name, with the field that it is in. The first one reported is the error of a
    /// builder.
    ///
    /// `store` is the one that will count, if it is known, and `on_store_error` the limiter's setting. In place of a mistake something valid is used from there on: a quota of 1,000 per minute, the default
    /// strategy, no lease.
    pub(crate) fn validate(
        &self,
        store: Option<&dyn Store>,
        on_store_error: Option<OnStoreError>,
        report: &mut dyn FnMut(InvalidValue),
    ) {
        let mut policy = self.clone();
        policy.validate_settings(report);
        if !policy.validate_lease(report) {
            policy.lease = None;
        }
        self.skip_rules().validate(report);
        for (index, rule) in self.cost_rules().iter().enumerate() {
            let (method, path) = (rule.method.as_ref(), rule.path.as_ref());
            for (field, checked) in [
                ("cost[].method", method.map(validate_method)),
                ("cost[].path", path.map(PathPattern::validate)),
            ] {
                if let Some(Err(invalid)) = checked {
                    report(invalid.in_entry(field, index));
                }
            }
        }
        let caller = policy.caller_extractor();
        for (field, extractor) in [
            ("caller", caller.map(|caller| caller.validate())),
            ("key", Some(policy.extractor().validate())),
        ] {
            if let Some(Err(invalid)) = extractor {
                report(invalid.in_field(field));
            }
        }
        let has_strategy = self.strategy.is_some() || self.is_block_list();
        policy.validate_quota(has_strategy, store, report);
        let rule = policy.trial(&policy.quota(), store).ok();
        let bans = rule
            .as_ref()
            .is_some_and(|rule| rule.info().counts_rejections);
        if bans {
            policy.validate_ban(report);
        }
        let mut capacity = rule.map(|rule| rule.info().capacity);
        let declared = policy.declared_quotas().enumerate();
        for (index, quota) in declared.filter(|(_, quota)| quota.amount() > 0) {
            match policy.trial(quota, store) {
                Ok(rule) => capacity = capacity.max(Some(rule.info().capacity)),
                Err(invalid) => report(invalid.in_entry("tier_quotas[]", index)),
            }
        }
        if let Some(capacity) = capacity.filter(|_| !bans) {
            policy.validate_cost(capacity, report);
        }
        policy.validate_fallback(on_store_error, report);
    }

    /// Reports settings that contradict each other, each at the one that a document sets last.
    fn validate_settings(&self, report: &mut dyn FnMut(InvalidValue)) {
        let after = self.charges_after();
        let rejected = self.charges_rejected();
        let concurrent = self.quota().is_concurrent();
        for (is_mistake, field, value, expected) in [
            (
                after && rejected,
                "charge_rejected",
                "charge_after together with charge_rejected",
                "refund_unless, or a charge on arrival, with charge_rejected",
            ),
            (
                after && concurrent,
                "charge",
                "charge_after for an in-flight limit",
                "a charge on arrival: a request is in flight from its arrival on",
            ),
            (
                rejected && concurrent,
                "charge_rejected",
                "charge_rejected for an in-flight limit",
                "an in-flight limit without charge_rejected: a rejected request is not in flight",
            ),
            (
                self.is_shadow() && rejected,
                "shadow",
                "charge_rejected for a shadow policy",
                "a shadow policy without charge_rejected: it rejects nothing",
            ),
        ] {
            if is_mistake {
                report(InvalidValue::new(value, expected).in_field(field));
            }
        }
    }

    /// The fields by which this policy does not simply charge what is admitted, on arrival: `charge` (if `by_outcome`),
    /// `charge_rejected` and `shadow`.
    fn other_charges(&self, by_outcome: bool) -> impl Iterator<Item = &'static str> {
        let fields = [
            (by_outcome, "charge"),
            (self.charges_rejected(), "charge_rejected"),
            (self.is_shadow(), "shadow"),
        ];
        let set = fields.into_iter().filter(|(is_set, _)| *is_set);
        set.map(|(_, field)| field)
    }

    /// Reports a lease that is out of range, or whose policy can't charge units before they are needed. Returns whether it is in
    /// range.
    fn validate_lease(&self, report: &mut dyn FnMut(InvalidValue)) -> bool {
        let Some(lease) = self.lease_setting() else {
            return true;
        };
        let mut in_range = true;
        validate_range(lease, &mut |invalid| {
            in_range = false;
            report(invalid);
        });
        for field in self.other_charges(self.charges_after()) {
            let name = match field {
                "charge" => "charge_after",
                field => field,
            };
            let invalid = InvalidValue::new(
                format!("a lease together with {name}"),
                "one of them: a lease charges units before the requests that spend them",
            );
            report(invalid.in_field(field));
        }
        in_range
    }

    /// Reports a quota, strategy or lease that can't be counted, and puts one that can in its place. The mistake is the strategy's
    /// if one was set (`is_own_strategy`), and the default one can count the quota.
    fn validate_quota(
        &mut self,
        is_own_strategy: bool,
        store: Option<&dyn Store>,
        report: &mut dyn FnMut(InvalidValue),
    ) {
        if self.trial(&self.quota(), store).is_ok() {
            return;
        }
        let lease = self.lease.take();
        if let Err(invalid) = self.trial(&self.quota(), store) {
            self.strategy = None;
            self.block_list = false;
            let by_default = self.trial(&self.quota(), store);
            let field = match by_default {
                Ok(_) if is_own_strategy => "strategy",
                _ => "quota",
            };
            if by_default.is_err() {
                self.quota = stand_in();
            }
            report(invalid.in_field(field));
        }
        self.lease = lease;
        if let Err(invalid) = self.trial(&self.quota(), store)
            && self.lease.take().is_some()
        {
            report(invalid.in_field("lease"));
        }
    }

    /// Reports a ban with a charge mode or as a shadow: it counts what other policies reject.
    fn validate_ban(&self, report: &mut dyn FnMut(InvalidValue)) {
        for field in self.other_charges(!self.charges_on_arrival()) {
            let invalid = InvalidValue::new(
                "a ban with charge_after, refund_unless, charge_rejected or shadow",
                "a ban without them: it counts the requests that other policies reject",
            );
            report(invalid.in_field(field));
        }
    }

    /// Reports configured costs that are more than the quota and its tiers can ever admit. Costs that come with requests are not
    /// checked here: a request with too high a cost is rejected, with a wait of `RetryAfter::Never`.
    fn validate_cost(&self, capacity: u64, report: &mut dyn FnMut(InvalidValue)) {
        let lease = self.lease_setting().map_or_else(String::new, |lease| {
            format!(" with a lease of {}", DurationText(lease.lifetime()))
        });
        let mut check = |cost, field, index| {
            if cost > capacity {
                let invalid = InvalidValue::new(
                    format!("a cost of {cost} under {}{lease}", self.quota()),
                    format!(
                        "a cost of at most {capacity}, or a larger quota among Policy::tier_quotas"
                    ),
                );
                report(invalid.in_entry(field, index));
            }
        };
        check(self.default_cost(), "cost", 0);
        for (index, rule) in self.cost_rules().iter().enumerate() {
            check(rule.cost, "cost[].cost", index);
        }
    }

    fn cost_rules(&self) -> &[CostRule] {
        match &self.cost {
            Cost::Rules(rules) => rules,
            Cost::Units(_) | Cost::With(_) => &[],
        }
    }

    /// Reports a local fallback that no process shares, or whose share can't be counted in process.
    fn validate_fallback(
        &self,
        of_limiter: Option<OnStoreError>,
        report: &mut dyn FnMut(InvalidValue),
    ) {
        if let Some(own) = self.store_error_action()
            && let Err(invalid) = own.validate()
        {
            report(invalid);
        }
        let Some(action @ OnStoreError::LocalFallback(fallback)) =
            self.store_error_action().or(of_limiter)
        else {
            return;
        };
        if action.validate().is_err() || self.is_shadow() {
            return;
        }
        // It counts in process, where units are spent as they are charged.
        let share = self.clone().without_lease();
        let rule = share.trial(&fallback.share(self.quota()), None);
        if let Err(invalid) = rule.and_then(|rule| local_rule(&*rule).map(drop)) {
            report(invalid.in_field("on_store_error"));
        }
    }

    /// An error for a name that can't be a string of a structured field (RFC 9651, section 3.3.3) without escapes.
    pub(crate) fn validate_name(&self) -> Result<(), InvalidValue> {
        let name = &*self.name;
        let visible = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        let trimmed = name.trim() == name;
        if name.is_empty() || name.len() > 64 || !name.bytes().all(visible) || !trimmed {
            return Err(InvalidValue::new(
                format!("the name {name:?}"),
                "1 to 64 printable ASCII characters without \" and \\, and no spaces around them",
            ));
        }
        Ok(())
    }
}

/// A quota in place of one that is a mistake, which almost any strategy counts.
fn stand_in() -> Quota {
    Quota::requests(1_000).per_minute()
}

/// Reports the settings of a lease that are out of range.
fn validate_range(lease: &Lease, report: &mut dyn FnMut(InvalidValue)) {
    let units = Lease::max_units(lease.most()).validate();
    for (field, checked) in [
        ("lease.max_units", units),
        ("lease.ttl", lease.validate_ttl()),
    ] {
        if let Err(invalid) = checked {
            report(invalid.in_field(field));
        }
    }
}
