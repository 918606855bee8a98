//! From a request, or the keys of a call by hand, to operations of the store: which policies apply, with which key, cost and
//! quota.

use std::cell::RefCell;

use http::request::Parts;
use smallvec::SmallVec;

use super::{
    bound_policy::BoundPolicy,
    check::CheckSettings,
    core::LimiterRef,
    decide::{DecisionBuilder, EarlyDecision},
    entry::PolicyEntry,
    explain::{EvaluationTrace, NotApplied, Untraced},
    keys::{CallEntry, Keys},
    mode::Mode,
    other_quotas::OtherQuota,
    overrides::AppliedOverride,
};
use crate::{
    error::{NotNow, UnknownPolicy},
    extract::{Extracted, KeyExtractor},
    key::Key,
    policy::skip::path::RequestPath,
    quota::Quota,
    store::{CounterOp, DecisionSource, Op, PendingResponse, Store, StoreResponse, Units},
};

impl LimiterRef {
    /// Evaluates an HTTP request. Returns what is pending; `None` if the request is decided.
    pub(crate) fn evaluate_request(
        &self,
        builder: &mut DecisionBuilder,
        parts: &Parts,
    ) -> Option<PendingResponse> {
        if self.select_policies(builder, parts, &mut Untraced) {
            self.call_store(builder)
        } else {
            None
        }
    }

    /// Adds an entry for each policy that applies to an HTTP request. False if the request is decided without the policies.
    #[inline(always)]
    pub(crate) fn select_policies(
        &self,
        builder: &mut DecisionBuilder,
        parts: &Parts,
        trace: &mut impl EvaluationTrace,
    ) -> bool {
        let head = &RequestHead::new(parts);
        match self.access_check_request(head, trace) {
            None => {}
            Some(early) => {
                self.apply_early(builder, early);
                return false;
            }
        }
        for (index, bound) in self.policies.iter().enumerate() {
            let policy = &bound.policy;
            let given = trace.given_keys();
            let given = given.and_then(|keys| self.key_of(bound, keys)).copied();
            if policy.is_by_hand() && given.is_none() {
                trace.on_not_applied(index, || NotApplied::ByHand);
                continue;
            }
            if let Some(matched) = policy.exempting(parts, &head.path) {
                let exemption = || policy.describe_exemption(matched, parts);
                trace.on_not_applied(index, || NotApplied::Exempt(exemption()));
                continue;
            }
            let found = match given {
                Some(key) => Extracted::Key(key),
                None => trace.find_key(bound, head),
            };
            let Extracted::Key(key) = found else {
                let rejects = bound.rejects_without_key(found);
                trace.on_not_applied(index, || NotApplied::NoKey {
                    missing: policy.missing_key_name(parts),
                    rejects,
                });
                if rejects {
                    self.reject_missing_key(builder, index, parts);
                    return false;
                }
                continue;
            };
            let quota = match bound.override_of(&*self.store, &key) {
                Some(AppliedOverride::Exempt(known)) => {
                    let setting = || known.setting.clone().into();
                    trace.on_not_applied(index, || NotApplied::Override(setting()));
                    continue;
                }
                Some(AppliedOverride::Quota(quota)) => RequestQuota::Other(quota),
                None => self.request_quota(bound, || policy.quota_in_request(parts)),
            };
            let cost = bound.cost_of(Some(head));
            let caller = bound.caller_key(|| bound.extract_caller(head));
            self.add_entry(builder, (index, bound), key, cost, caller, quota);
        }
        true
    }

    /// Evaluates a call with its own keys. Returns what is pending; `None` if the call is decided.
    pub(crate) fn evaluate_call(
        &self,
        builder: &mut DecisionBuilder,
        keys: &Keys,
        settings: Option<&CheckSettings>,
    ) -> Option<PendingResponse> {
        if self.select_policies_of_call(builder, keys, settings) {
            self.call_store(builder)
        } else {
            None
        }
    }

    /// Evaluates a call with its own keys without waiting. Returns why it can't be decided; `None` if it is decided.
    pub(crate) fn evaluate_call_now(
        &self,
        builder: &mut DecisionBuilder,
        keys: &Keys,
        settings: Option<&CheckSettings>,
    ) -> Option<NotNow> {
        let selects = self.select_policies_of_call(builder, keys, settings);
        if !selects || builder.entries.is_empty() {
            return None;
        }
        let op = builder.op;
        let response = self.with_arrival_ops(builder, |ops| self.store.execute_now(op, ops));
        let Some(response) = response else {
            return Some(NotNow::Store);
        };
        self.apply_response(builder, response);
        None
    }

    /// Adds an entry for each policy that applies to a call with its own keys. False if the call is decided without the
    /// policies.
    #[inline(always)]
    pub(crate) fn select_policies_of_call(
        &self,
        builder: &mut DecisionBuilder,
        keys: &Keys,
        settings: Option<&CheckSettings>,
    ) -> bool {
        let (op, mode) = (builder.op, builder.mode);
        let parts = settings.and_then(|settings| settings.parts.as_deref());
        let head = parts.map(RequestHead::new);
        if let Some(early) = self.decide_early((op, mode), keys, settings, head.as_ref()) {
            self.apply_early(builder, early);
            return false;
        }
        let call = CallSettings {
            op,
            mode,
            keys,
            settings,
            head: head.as_ref(),
        };
        if let Some(entries) = keys.entries() {
            for (index, entry) in self.entries_of_policies(entries) {
                self.add_policy(builder, &call, index, entry.key, Some(entry));
            }
            return true;
        }
        // A reset by one key leaves out policies with a fixed key, which count all callers together, unless all policies have one.
        let resets_caller =
            op == Op::Reset && self.policies.iter().any(|bound| bound.fixed_key.is_none());
        for (index, bound) in self.policies.iter().enumerate() {
            // A policy that is not named does not apply.
            let Some(key) = self.key_of(bound, keys) else {
                continue;
            };
            if resets_caller && keys.all().is_some_and(|all| all != key) {
                continue;
            }
            self.add_policy(builder, &call, index, *key, None);
        }
        true
    }

    /// Adds an entry for a policy of a call with its own keys, unless its conditions leave it out.
    #[inline(always)]
    fn add_policy(
        &self,
        builder: &mut DecisionBuilder,
        call: &CallSettings<'_>,
        index: usize,
        key: Key,
        entry: Option<&CallEntry>,
    ) {
        let (bound, op, settings) = (&self.policies[index], call.op, call.settings);
        let policy = &bound.policy;
        // A charge by hand counts as rejections only under a ban that it names.
        if bound.is_ban() && op == Op::Adjust && !call.keys.names_policy(policy.name()) {
            return;
        }
        let skips = |head: &RequestHead<'_>| policy.skips(head.parts, &head.path);
        if call.mode.conditions && call.head.is_some_and(skips) {
            return;
        }
        let cost = match self.cost_in_call(bound, entry, settings) {
            Some(cost) if !bound.is_ban() || op == Op::Adjust => cost,
            _ => bound.cost_of(call.head.filter(|_| call.mode.request_costs)),
        };
        // Entries of one counter follow each other.
        if entry.is_some()
            && let Some(last) = builder.entries.last_mut()
            && (last.policy, last.key) == (index as u32, key)
        {
            // A ban counts a request as one, whatever the call asks.
            last.cost = match bound.is_ban() && op != Op::Adjust {
                true => last.cost,
                false => last.cost.saturating_add(cost),
            };
            return;
        }
        let quota = match bound.override_of(&*self.store, &key) {
            Some(AppliedOverride::Exempt(_)) if call.mode.lists => return,
            Some(AppliedOverride::Quota(quota)) => RequestQuota::Other(quota),
            _ => {
                let of_request = || policy.quota_in_request(call.head?.parts);
                let of_call = || self.quota_in_call(bound, entry, settings);
                self.request_quota(bound, || of_call().or_else(of_request))
            }
        };
        let caller = || bound.extract_caller(call.head?);
        let caller = bound.caller_key(|| call.keys.given_caller().or_else(caller));
        self.add_entry(builder, (index, bound), key, cost, caller, quota);
    }

    /// The entries of a call with the indices of their policies, in the order of the policies, and under each policy in the
    /// order of the keys.
    pub(super) fn entries_of_policies<'a>(
        &self,
        entries: &'a [CallEntry],
    ) -> SmallVec<[(usize, &'a CallEntry); 4]> {
        // An unknown policy has made the call invalid.
        let indexed = entries
            .iter()
            .filter_map(|entry| Some((self.index_of(entry).ok()?, entry)));
        let mut indexed: SmallVec<[_; 4]> = indexed.collect();
        indexed.sort_by_key(|(index, entry)| (*index, entry.key));
        indexed
    }

    /// The index of an entry's policy.
    pub(super) fn index_of(&self, entry: &CallEntry) -> Result<usize, UnknownPolicy> {
        let index = entry.index as usize;
        let is_there = |bound: &BoundPolicy| bound.policy.name() == &*entry.policy;
        match self.policies.get(index).is_some_and(is_there) {
            true => Ok(index),
            // The policies were replaced.
            false => self.find(&entry.policy),
        }
    }

    /// An entry that sets another quota than one before it of the same policy and key.
    pub(super) fn ambiguous_quota<'a>(&self, entries: &'a [CallEntry]) -> Option<&'a CallEntry> {
        if entries.iter().all(|entry| entry.quota.is_none()) {
            return None;
        }
        let all = self.entries_of_policies(entries);
        let mut pairs = all.windows(2);
        let ambiguous = pairs.find(|pair| {
            let [(index, entry), (next_index, next)] = [pair[0], pair[1]];
            (index, entry.key) == (next_index, next.key) && entry.quota != next.quota
        })?;
        Some(ambiguous[1].1)
    }

    /// The key of a call under a policy. A policy with a fixed key has that in place of one key for all policies.
    #[inline(always)]
    pub(crate) fn key_of<'a>(&self, bound: &'a BoundPolicy, keys: &'a Keys) -> Option<&'a Key> {
        match keys.all() {
            Some(all) => Some(bound.fixed_key.as_ref().unwrap_or(all)),
            None => keys.of(bound.policy.name()),
        }
    }

    /// The cost that a call sets for a policy.
    #[inline]
    pub(crate) fn cost_in_call(
        &self,
        bound: &BoundPolicy,
        entry: Option<&CallEntry>,
        settings: Option<&CheckSettings>,
    ) -> Option<u64> {
        let of_entry = entry.and_then(|entry| entry.cost);
        of_entry.or_else(|| settings?.cost(bound.policy.name()))
    }

    /// The quota that a call sets for a policy.
    #[inline]
    pub(crate) fn quota_in_call(
        &self,
        bound: &BoundPolicy,
        entry: Option<&CallEntry>,
        settings: Option<&CheckSettings>,
    ) -> Option<Quota> {
        let of_entry = entry.and_then(|entry| entry.quota);
        of_entry.or_else(|| settings?.quota(bound.policy.name()))
    }

    /// Adds a policy that applies. Inlined like the next functions, so that no large value is moved between them.
    #[inline(always)]
    pub(crate) fn add_entry(
        &self,
        builder: &mut DecisionBuilder,
        (index, bound): (usize, &BoundPolicy),
        key: Key,
        cost: u64,
        caller: Option<Box<Key>>,
        quota: RequestQuota,
    ) {
        let policy = (index as u32, bound.role);
        let (other_quota, cost) = match quota {
            RequestQuota::Own => (None, cost),
            RequestQuota::Other(quota) => (Some(quota), cost),
            // More than the policy's own quota ever admits; what is not a request is counted by that.
            RequestQuota::AdmitsNothing if matches!(builder.op, Op::Acquire(_) | Op::Peek) => {
                (None, u64::MAX)
            }
            RequestQuota::AdmitsNothing => (None, cost),
        };
        builder
            .entries
            .push(PolicyEntry::new(policy, key, cost, caller, other_quota));
    }

    /// The quota by which a request is counted, of which `find` has that in place of the policy's own.
    #[inline(always)]
    fn request_quota(
        &self,
        bound: &BoundPolicy,
        find: impl FnOnce() -> Option<Quota>,
    ) -> RequestQuota {
        match find() {
            Some(quota) => self.other_quota(bound, quota),
            None => RequestQuota::Own,
        }
    }

    #[cold]
    fn other_quota(&self, bound: &BoundPolicy, quota: Quota) -> RequestQuota {
        if quota == bound.policy.quota() {
            return RequestQuota::Own;
        }
        match bound.other_quota(&*self.store, quota, "nothing is admitted") {
            Some(counted) => RequestQuota::Other(counted),
            // A ban has no other quotas: it counts rejections.
            None if bound.is_ban() => RequestQuota::Own,
            None => RequestQuota::AdmitsNothing,
        }
    }

    /// Calls the store, and applies a response that is ready. Returns what is pending.
    #[inline(always)]
    pub(crate) fn call_store(&self, builder: &mut DecisionBuilder) -> Option<PendingResponse> {
        if builder.entries.is_empty() {
            return None;
        }
        match self.execute(builder) {
            StoreResponse::Ready(response) => {
                self.apply_response(builder, response);
                None
            }
            StoreResponse::Pending(response) => Some(response),
        }
    }

    #[inline(always)]
    pub(crate) fn execute(&self, builder: &DecisionBuilder) -> StoreResponse {
        self.execute_on(&*self.store, builder)
    }

    #[inline(always)]
    pub(crate) fn execute_on(&self, store: &dyn Store, builder: &DecisionBuilder) -> StoreResponse {
        self.with_arrival_ops(builder, |ops| store.execute(builder.op, ops))
    }

    /// Calls `f` with the operation on each policy's counter when the request arrives.
    #[inline(always)]
    pub(crate) fn with_arrival_ops<T>(
        &self,
        builder: &DecisionBuilder,
        f: impl FnOnce(&[CounterOp<'_>]) -> T,
    ) -> T {
        let entries = &builder.entries[..];
        let counter_op = |entry| self.arrival_op(entry, builder.mode.will_retry);
        match entries {
            [entry] => f(&[counter_op(entry)]),
            entries => {
                let ops: SmallVec<[CounterOp<'_>; 4]> = entries.iter().map(counter_op).collect();
                f(&ops)
            }
        }
    }

    /// The operation on one policy's counter when the request arrives.
    #[inline(always)]
    fn arrival_op<'a>(&'a self, entry: &'a PolicyEntry, will_retry: bool) -> CounterOp<'a> {
        let bound = self.bound(entry.policy);
        let counts_nothing = bound.is_ban() && (will_retry || bound.policy.is_block_list());
        CounterOp {
            limit: bound.limit_of(entry),
            key: entry.key,
            units: if counts_nothing {
                Units::ZERO
            } else {
                entry.units()
            },
            receipt: None,
            caller: entry.caller(),
            mode: bound.arrival_mode,
        }
    }

    #[cold]
    fn reject_missing_key(&self, builder: &mut DecisionBuilder, policy: usize, parts: &Parts) {
        let kind = self.policies[policy].missing_key_kind(parts);
        builder.decide_without_store(kind, DecisionSource::NotChecked);
        self.log_rejected(builder);
    }

    #[cold]
    pub(super) fn apply_early(&self, builder: &mut DecisionBuilder, early: EarlyDecision) {
        builder.decide_early(early);
        self.log_rejected(builder);
    }
}

/// The quota by which a request is counted.
pub(crate) enum RequestQuota {
    /// The policy's own.
    Own,
    Other(OtherQuota),
    /// One of 0, or another that the strategy can't count.
    AdmitsNothing,
}

/// A call with its own keys.
struct CallSettings<'a> {
    op: Op,
    mode: Mode,
    keys: &'a Keys,
    settings: Option<&'a CheckSettings>,
    head: Option<&'a RequestHead<'a>>,
}

/// The head of a request that is evaluated: its path is decoded once for the conditions of all policies, and extractors that
/// several of them share are asked once.
pub(crate) struct RequestHead<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) path: RequestPath<'a>,
    /// What the shared extractors have found, by their `shared_key` or `shared_caller` index.
    extracted: RefCell<SmallVec<[Option<Extracted>; 2]>>,
}

impl<'a> RequestHead<'a> {
    #[inline]
    pub(crate) fn new(parts: &'a Parts) -> Self {
        Self {
            parts,
            path: RequestPath::of(parts),
            extracted: RefCell::default(),
        }
    }

    /// What an extractor finds; `shared` is its index if others are equal to it.
    #[inline]
    pub(crate) fn extract(&self, extractor: &dyn KeyExtractor, shared: Option<usize>) -> Extracted {
        match shared {
            None => extractor.extract(self.parts),
            Some(index) => self.extract_once(extractor, index),
        }
    }

    fn extract_once(&self, extractor: &dyn KeyExtractor, index: usize) -> Extracted {
        if let Some(Some(found)) = self.extracted.borrow().get(index) {
            return *found;
        }
        let found = extractor.extract(self.parts);
        let mut extracted = self.extracted.borrow_mut();
        let len = extracted.len().max(index + 1);
        extracted.resize(len, None);
        extracted[index] = Some(found);
        found
    }
}
