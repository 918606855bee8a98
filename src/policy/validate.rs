//! Validation of policies.

use std::{sync::Arc, time::Duration};

use super::{Policy, QuotaSource};
use crate::{
    charge::ChargeTime,
    error::InvalidValue,
    quota::{MAX_CAPACITY, Quota},
    strategy::{Rule, TierRefills, format},
};

impl Policy {
    /// The strategy's rule for `quota`. An error if [`Units`](crate::store::units::Units) can't hold its costs and debts, or if its
    /// state format is another strategy's.
    pub(crate) fn bind(
        &self,
        quota: &Quota,
        refills: &TierRefills,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        let strategy = self.strategy_or_default();
        if quota.period() != self.quota.period() && strategy.tiers_share_period() {
            return Err(InvalidValue::new(
                format!("{quota}, a tier whose period is not that of {}", self.quota),
                "a tier of the same period, a policy of its own, Gcra or TokenBucket",
            ));
        }
        let rule = match &self.lease {
            Some(lease) => strategy.bind_leased(quota, refills, lease)?,
            None => strategy.bind_tier(quota, refills)?,
        };
        if rule.capacity() > MAX_CAPACITY {
            return Err(InvalidValue::new(
                format!("{quota}, a capacity of {}", rule.capacity()),
                format!("a capacity of at most {MAX_CAPACITY}"),
            ));
        }
        format::check(&*rule)?;
        Ok(rule)
    }

    /// An error for settings that contradict each other, or an extractor that can never find a key.
    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        if self.charge.when == ChargeTime::Response && self.charge.rejected {
            return Err(InvalidValue::new(
                "charge_after together with charge_rejected",
                "refund_unless, or a charge on arrival, with charge_rejected",
            ));
        }
        if self.charge.when == ChargeTime::Response && self.quota.is_concurrent() {
            return Err(InvalidValue::new(
                "charge_after for an in-flight limit",
                "a charge on arrival: a request is in flight from its arrival on",
            ));
        }
        if self.charge.rejected && self.quota.is_concurrent() {
            return Err(InvalidValue::new(
                "charge_rejected for an in-flight limit",
                "an in-flight limit without charge_rejected: a rejected request is not in flight",
            ));
        }
        if matches!(self.quota_source, QuotaSource::Lookup(_, Duration::ZERO)) {
            return Err(InvalidValue::new(
                "a quota_lookup with a timeout of 0",
                "a longer timeout",
            ));
        }
        if self.shadow.is_some() && self.charge.rejected {
            return Err(InvalidValue::new(
                "charge_rejected for a shadow policy",
                "a shadow policy without charge_rejected: it rejects nothing",
            ));
        }
        self.validate_lease()?;
        self.skips.validate()?;
        let caller = self.caller.as_ref();
        caller.map_or(Ok(()), |caller| caller.validate())?;
        self.extractor().validate()
    }

    /// An error for a ban with a charge mode or as a shadow: it counts what other policies reject.
    pub(crate) fn validate_ban(&self) -> Result<(), InvalidValue> {
        let charges_on_arrival = self.charge.when == ChargeTime::Arrival && !self.charge.rejected;
        if charges_on_arrival && self.shadow.is_none() {
            return Ok(());
        }
        Err(InvalidValue::new(
            "a ban with charge_after, refund_unless, charge_rejected or shadow",
            "a ban without them: it counts the requests that other policies reject",
        ))
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
