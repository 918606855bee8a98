//! Registered code, found by the names in a document.

use std::sync::Arc;

use super::{BUILT_IN_OUTCOMES, Names, Registry};
use crate::{
    config::names,
    error::InvalidValue,
    extract::{Bearer, ClientIp, KeyExtractor, bearer, client_ip},
    policy::{
        charging::OutcomeFn,
        cost::CostFn,
        label::LabelFn,
        quotas::{QuotaFn, QuotaLookupFn, TierFn},
        skip::ConditionFn,
    },
    respond::OnRejection,
    setting::Slot,
    strategy::Strategy,
};

impl Registry {
    /// Sets what `client_ip` without settings stands for.
    pub(crate) fn with_client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client_ip = Some(client_ip);
        self
    }

    /// Sets what `bearer` stands for.
    pub(crate) fn with_bearer(mut self, bearer: Bearer) -> Self {
        self.bearer = Some(bearer);
        self
    }

    /// What `client_ip` without settings stands for.
    pub(crate) fn client_ip(&self) -> ClientIp {
        self.client_ip.clone().unwrap_or_else(client_ip)
    }

    /// What `bearer` stands for.
    pub(crate) fn bearer(&self) -> Bearer {
        self.bearer.clone().unwrap_or_else(bearer)
    }

    /// The names that can't be used, with the reason: mistakes of every document that is loaded with the registry.
    pub(crate) fn mistakes(&self) -> &[InvalidValue] {
        &self.mistakes
    }

    /// The names of the registered extractors.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(|name| &**name)
    }

    /// The names of the registered strategies.
    pub(crate) fn strategy_names(&self) -> impl Iterator<Item = &str> {
        self.strategies.keys().map(|name| &**name)
    }

    pub(crate) fn find_key(&self, name: &str) -> Option<Arc<dyn KeyExtractor>> {
        self.keys.get(name).and_then(Slot::shared_code)
    }

    pub(crate) fn find_strategy(&self, name: &str) -> Option<Arc<dyn Strategy>> {
        self.strategies.get(name).and_then(Slot::shared_code)
    }

    pub(crate) fn find_cost(&self, name: &str) -> Result<Slot<CostFn>, InvalidValue> {
        find(&self.costs, "cost", name)
    }

    pub(crate) fn find_tier(&self, name: &str) -> Result<Slot<TierFn>, InvalidValue> {
        find(&self.tiers, "tier", name)
    }

    /// A registered outcome, or one of [`outcome`](crate::outcome).
    pub(crate) fn find_outcome(&self, name: &str) -> Result<Slot<OutcomeFn>, InvalidValue> {
        let mut built_in = BUILT_IN_OUTCOMES.into_iter();
        if let Some((name, charges)) = built_in.find(|(own, _)| *own == name) {
            return Ok(Slot::shared(Arc::new(charges), Some(name.into())));
        }
        let code = self.outcomes.get(name).cloned();
        code.ok_or_else(|| {
            let built_in = BUILT_IN_OUTCOMES.map(|(name, _)| name);
            let registered = self.outcomes.keys().map(|name| &**name);
            names::unknown("outcome", name, &built_in, registered)
        })
    }

    pub(crate) fn find_condition(&self, name: &str) -> Result<Slot<ConditionFn>, InvalidValue> {
        find(&self.conditions, "condition", name)
    }

    pub(crate) fn find_quota(&self, name: &str) -> Result<Slot<QuotaFn>, InvalidValue> {
        find(&self.quotas, "quota", name)
    }

    pub(crate) fn find_label(&self, name: &str) -> Result<Slot<LabelFn>, InvalidValue> {
        find(&self.labels, "label", name)
    }

    pub(crate) fn find_quota_lookup(
        &self,
        name: &str,
    ) -> Result<Slot<QuotaLookupFn>, InvalidValue> {
        find(&self.quota_lookups, "quota_lookup", name)
    }

    pub(crate) fn find_on_rejection(&self, name: &str) -> Result<Slot<OnRejection>, InvalidValue> {
        find(&self.responses, "on_rejection", name)
    }
}

fn find<F: ?Sized>(
    names: &Names<F>,
    kind: &'static str,
    name: &str,
) -> Result<Slot<F>, InvalidValue> {
    let code = names.get(name).cloned();
    let registered = names.keys().map(|name| &**name);
    code.ok_or_else(|| names::unknown(kind, name, &[], registered))
}
