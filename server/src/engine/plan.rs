//! From a request to calls of the limiter, and from their results to the outcome of each descriptor.

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use metrics::Counter;
use smallvec::SmallVec;
use tollgate::{
    CallError, Decision, Key, Quota, RetryAfter,
    limiter::{
        CallEntry, Check, Credit, Credited, DecisionKind, LimitStatus, PolicyDecision, PolicyHandle,
    },
    observe::DecisionSource,
};

use super::{
    MAX_DESCRIPTORS, MAX_ENTRIES, MAX_TEXT_BYTES, MAX_TOGETHER, OnError, Refusal, Shared,
    metrics::RuleCounters,
    tree::{CompiledLimit, CompiledRule, Counted, Match, Tree, is_credential, of_overrides},
};
use crate::{
    proto::{RateLimitDescriptor, RateLimitRequest},
    rules::Unit,
};

/// What has to be asked of the limiter for a request.
pub(super) struct Plan {
    descriptors: Vec<Planned>,
    calls: Vec<Call>,
}

enum Planned {
    Unlimited(Unlimited),
    Limited(Limited, SmallVec<[(Arc<Counted>, DecidedBy); 1]>),
}

/// Why a descriptor has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlimited {
    /// No rule matches, or other descriptors' rules replace its limits.
    NoRule,
    /// Its rule says so.
    ByRule,
    /// The store failed, and requests are admitted then.
    Uncounted,
}

/// A descriptor with limits.
pub(super) struct Limited {
    pub(super) cost: u64,
    /// Whether the cost is given back.
    pub(super) is_credit: bool,
    /// `None` for a limit of the descriptor.
    pub(super) rule: Option<Arc<CompiledRule>>,
    pub(super) counters: Arc<RuleCounters>,
    key: Key,
}

/// What decides a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecidedBy {
    /// The limit is 0: nothing is left.
    Zero,
    /// The call at this index.
    Call(usize),
    /// The last call, which decides several limits at once.
    LastCall,
}

/// The result for a descriptor.
pub(super) enum Outcome {
    Unlimited(Unlimited),
    /// With its limits, of which there is at least one.
    Limited(Limited, SmallVec<[(Arc<Counted>, Standing); 1]>),
}

/// How a descriptor stands to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) over: bool,
    /// Units per period: the limit's own, unless an operator has set another for this key.
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// Until all units are back; over the limit, until this cost is admitted. In whole seconds, rounded up.
    pub(super) reset_seconds: u64,
    /// Whether a wait of that long helps.
    pub(super) may_retry: bool,
}

/// A call of the limiter.
enum Call {
    Check(Check),
    /// Of a cost of 0.
    Peek(Check<Result<LimitStatus, CallError>>),
    Credit(Credit),
}

enum Answer {
    Decision(Decision),
    Peeked(Result<LimitStatus, CallError>),
    Credited(Result<Credited, CallError>),
}

impl Call {
    async fn run(self) -> Answer {
        match self {
            Self::Check(check) => Answer::Decision(check.await),
            Self::Peek(peek) => Answer::Peeked(peek.await),
            Self::Credit(credit) => Answer::Credited(credit.await),
        }
    }
}

/// What limits a descriptor.
enum Target {
    None,
    Rule(Match),
    /// The limit that the descriptor brings.
    Override(Unit, u64),
}

impl Target {
    /// The limits of its rule.
    fn limits(&self) -> &[CompiledLimit] {
        match self {
            Self::Rule(found) => &found.rule.limits,
            Self::None | Self::Override(..) => &[],
        }
    }
}

/// The calls of a plan that is being made.
#[derive(Default)]
struct Calls {
    single: Vec<Call>,
    together: Vec<CallEntry>,
}

impl Shared {
    pub(super) fn plan(
        &self,
        request: &RateLimitRequest,
        may_credit: bool,
    ) -> Result<Plan, Refusal> {
        validate(request, may_credit)?;
        // Until all calls are made: the limiter decides each under the policies that it has now.
        let tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        let domain = &request.domain;
        let targets = request.descriptors.iter();
        let targets = targets.map(|descriptor| self.target(&tree, domain, descriptor));
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        // A limit that is itself replaced replaces others nevertheless.
        let limits = targets.iter().flat_map(Target::limits);
        let replaced = limits.flat_map(|limit| limit.replaces.iter().map(|name| &**name));
        let replaced: HashSet<&str> = replaced.collect();

        let mut calls = Calls::default();
        let planned = targets.iter().zip(&request.descriptors);
        let planned = planned.map(|(target, descriptor)| {
            let default_cost = u64::from(request.hits_addend.max(1));
            let cost = descriptor.hits_addend.unwrap_or(default_cost);
            let limited = |key, rule, counters: &Arc<RuleCounters>| Limited {
                cost,
                is_credit: descriptor.is_negative_hits,
                rule,
                counters: counters.clone(),
                key,
            };
            match target {
                Target::None => Ok(Planned::Unlimited(Unlimited::NoRule)),
                Target::Rule(Match {
                    rule,
                    key,
                    counters,
                }) => {
                    let limited = limited(*key, Some(rule.clone()), counters);
                    self.plan_rule(limited, rule, &replaced, &mut calls)
                }
                Target::Override(unit, requests_per_unit) => {
                    let key = key_of_override(domain, descriptor);
                    let limited = limited(key, None, &self.override_counters(domain));
                    self.plan_override(limited, *unit, *requests_per_unit, &mut calls)
                }
            }
        });
        let descriptors = planned.collect::<Result<Vec<_>, _>>()?;
        let Calls {
            single: mut calls,
            together,
        } = calls;
        if together.len() > MAX_TOGETHER {
            let found = together.len();
            return Err(Refusal::Invalid(format!(
                "the descriptors have {found} limits that are charged together; at most {MAX_TOGETHER} are allowed"
            )));
        }
        if !together.is_empty() {
            calls.push(Call::Check(self.limiter.check(together)));
        }
        Ok(Plan { descriptors, calls })
    }

    fn target(
        &self,
        tree: &Tree,
        domain: &str,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Target, Refusal> {
        let Some(limit) = descriptor.limit else {
            let found = tree.find(domain, descriptor, &self.metrics);
            return Ok(found.map_or(Target::None, Target::Rule));
        };
        let unit = Unit::from_number(limit.unit).ok_or_else(|| {
            Refusal::Invalid(format!(
                "the limit of a descriptor has no unit {}",
                limit.unit
            ))
        })?;
        // As for rules: a domain that is not known has no limits.
        if tree.has_domain(domain) {
            Ok(Target::Override(unit, limit.requests_per_unit.into()))
        } else {
            Ok(Target::None)
        }
    }

    fn plan_rule(
        &self,
        limited: Limited,
        rule: &CompiledRule,
        replaced: &HashSet<&str>,
        calls: &mut Calls,
    ) -> Result<Planned, Refusal> {
        let in_force = |limit: &&CompiledLimit| {
            // What is not limited can't be replaced.
            limit.counted.is_none() || limit.name.is_empty() || !replaced.contains(&*limit.name)
        };
        let mut unlimited = Unlimited::NoRule;
        let mut limits = SmallVec::new();
        for limit in rule.limits.iter().filter(in_force) {
            let Some(counted) = &limit.counted else {
                unlimited = Unlimited::ByRule;
                continue;
            };
            let decided_by = match counted.requests_per_unit {
                0 => DecidedBy::Zero,
                _ => {
                    let handle = counted.handle(&self.limiter);
                    let handle = handle.ok_or_else(|| no_policy(&counted.policy))?;
                    let is_single = is_decided_alone(rule, counted);
                    calls.add(self, &limited, handle, None, is_single)
                }
            };
            limits.push((counted.clone(), decided_by));
        }
        Ok(if limits.is_empty() {
            Planned::Unlimited(unlimited)
        } else {
            Planned::Limited(limited, limits)
        })
    }

    fn plan_override(
        &self,
        limited: Limited,
        unit: Unit,
        requests_per_unit: u64,
        calls: &mut Calls,
    ) -> Result<Planned, Refusal> {
        let counted = Counted::of_override(unit, requests_per_unit);
        let decided_by = match requests_per_unit {
            0 => DecidedBy::Zero,
            _ => {
                let handle = counted.handle(&self.limiter);
                let handle = handle.ok_or_else(|| no_policy(&counted.policy))?;
                let quota = unit.quota(requests_per_unit);
                calls.add(self, &limited, handle, Some(quota), true)
            }
        };
        let limits = SmallVec::from_iter([(Arc::new(counted), decided_by)]);
        Ok(Planned::Limited(limited, limits))
    }

    fn override_counters(&self, domain: &str) -> Arc<RuleCounters> {
        self.metrics.counters_of_rule(&of_overrides(domain))
    }
}

fn no_policy(name: &str) -> Refusal {
    Refusal::Internal(format!("there is no policy {name:?}"))
}

/// Whether a limit is decided by a call of its own. Those that may be over while the request passes are.
fn is_decided_alone(rule: &CompiledRule, counted: &Counted) -> bool {
    rule.shadow_mode || rule.quota_mode || counted.independent
}

impl Calls {
    /// Adds the call for a limit, or adds the limit to the call that decides several.
    fn add(
        &mut self,
        shared: &Shared,
        limited: &Limited,
        handle: &PolicyHandle,
        quota: Option<Quota>,
        is_single: bool,
    ) -> DecidedBy {
        if limited.is_credit {
            let mut credit = handle.credit(limited.key, limited.cost);
            if let Some(quota) = quota {
                credit = credit.quota_for(handle.name(), quota);
            }
            return self.add_single(Call::Credit(credit));
        }
        // The wait of a peek is that for one unit.
        let mut entry = handle.entry(limited.key).cost(limited.cost.max(1));
        if let Some(quota) = quota {
            entry = entry.quota(quota);
        }
        if limited.cost == 0 {
            return self.add_single(Call::Peek(shared.limiter.peek(entry)));
        }
        if is_single {
            return self.add_single(Call::Check(shared.limiter.check(entry)));
        }
        self.together.push(entry);
        DecidedBy::LastCall
    }

    fn add_single(&mut self, call: Call) -> DecidedBy {
        self.single.push(call);
        DecidedBy::Call(self.single.len() - 1)
    }
}

impl Plan {
    /// Makes the calls, all at once: the store sends those together that are queued when it is ready. `failures` counts plans for which
    /// the store failed.
    pub(super) async fn carry_out(
        self,
        on_error: OnError,
        failures: &Counter,
    ) -> Result<Vec<Outcome>, Refusal> {
        let answers = join_all(self.calls.into_iter().map(Call::run)).await;
        if answers.iter().any(Answer::has_failed) {
            failures.increment(1);
        }
        let outcomes = self.descriptors.into_iter().map(|planned| match planned {
            Planned::Unlimited(why) => Ok(Outcome::Unlimited(why)),
            Planned::Limited(limited, limits) => outcome(limited, limits, &answers, on_error),
        });
        outcomes.collect()
    }
}

fn outcome(
    limited: Limited,
    limits: SmallVec<[(Arc<Counted>, DecidedBy); 1]>,
    answers: &[Answer],
    on_error: OnError,
) -> Result<Outcome, Refusal> {
    let mut standings = SmallVec::new();
    for (info, decided_by) in limits {
        let answer = match decided_by {
            DecidedBy::Zero => {
                let standing = limited.standing_of_zero(&info);
                standings.push((info, standing));
                continue;
            }
            DecidedBy::Call(index) => answers.get(index),
            DecidedBy::LastCall => answers.last(),
        };
        let missing = || Refusal::Internal("a descriptor was not decided".to_owned());
        if let Some(standing) = answer
            .ok_or_else(missing)?
            .standing(&limited, &info, on_error)?
        {
            standings.push((info, standing));
        }
    }
    Ok(if standings.is_empty() {
        Outcome::Unlimited(Unlimited::Uncounted)
    } else {
        Outcome::Limited(limited, standings)
    })
}

impl Limited {
    pub(super) fn is_shadow(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.shadow_mode)
    }

    pub(super) fn is_quota(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.quota_mode)
    }

    /// The standing to a limit of 0.
    fn standing_of_zero(&self, info: &Counted) -> Standing {
        Standing {
            over: self.cost > 0 && !self.is_credit,
            limit: 0,
            remaining: 0,
            reset_seconds: info.period_seconds,
            may_retry: false,
        }
    }

    /// The standing by a policy's decision; `None` if the request was admitted uncounted.
    fn standing<'d>(
        &self,
        info: &Counted,
        mut decisions: impl Iterator<Item = PolicyDecision<'d>>,
        is_over: fn(&PolicyDecision<'_>) -> bool,
    ) -> Option<Standing> {
        let mine = |decision: &PolicyDecision<'_>| {
            decision.policy() == &*info.policy && decision.key() == self.key
        };
        let decision = decisions.find(mine)?;
        let over = is_over(&decision);
        let (wait, may_retry) = match decision.retry_after() {
            RetryAfter::In(wait) if over => (wait, true),
            _ => (decision.reset_after(), false),
        };
        Some(Standing {
            over,
            limit: decision.quota().amount(),
            remaining: decision.remaining(),
            reset_seconds: whole_seconds(wait).max(over.into()),
            may_retry,
        })
    }
}

impl Answer {
    /// Whether the store failed.
    fn has_failed(&self) -> bool {
        match self {
            Self::Decision(decision) => decision.source() == DecisionSource::Fallback,
            Self::Peeked(Err(CallError::Store(_))) | Self::Credited(Err(CallError::Store(_))) => {
                true
            }
            Self::Peeked(_) | Self::Credited(_) => false,
        }
    }

    /// The standing of a descriptor to a limit; `None` if the request is admitted uncounted.
    fn standing(
        &self,
        limited: &Limited,
        info: &Counted,
        on_error: OnError,
    ) -> Result<Option<Standing>, Refusal> {
        let standing = match self {
            Self::Decision(decision) => match decision.kind() {
                DecisionKind::Admitted | DecisionKind::Rejected => {
                    let decisions = decision.policies();
                    Ok(limited.standing(info, decisions, |decision| decision.rejected()))
                }
                DecisionKind::StoreFailed(error) => Err(Refusal::Store(error.clone())),
                other => Err(Refusal::Internal(format!(
                    "a call was not decided: {other:?}"
                ))),
            },
            Self::Peeked(Ok(status)) => {
                // As in the reference server: a limit that is used up is not over yet.
                let in_debt = |decision: &PolicyDecision<'_>| decision.debt() > 0;
                Ok(limited.standing(info, status.policies(), in_debt))
            }
            // Nothing was asked for.
            Self::Credited(Ok(credited)) => {
                Ok(limited.standing(info, credited.status().policies(), |_| false))
            }
            Self::Peeked(Err(error)) | Self::Credited(Err(error)) => Err(error.clone().into()),
        };
        match (standing, on_error) {
            (Err(Refusal::Store(_)), OnError::Admit) => Ok(None),
            (Err(Refusal::Store(_)), OnError::Reject) => Ok(Some(Standing {
                over: true,
                limit: info.requests_per_unit,
                remaining: 0,
                reset_seconds: 1,
                may_retry: true,
            })),
            (standing, _) => standing,
        }
    }
}

fn validate(request: &RateLimitRequest, may_credit: bool) -> Result<(), Refusal> {
    let invalid = |reason: String| Err(Refusal::Invalid(reason));
    let too_long = |text: &str| text.len() > MAX_TEXT_BYTES;
    if request.domain.is_empty() {
        return invalid("the domain is empty".to_owned());
    }
    if request.descriptors.is_empty() {
        return invalid("there are no descriptors".to_owned());
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        let found = request.descriptors.len();
        return invalid(format!(
            "{found} descriptors; at most {MAX_DESCRIPTORS} are allowed"
        ));
    }
    if too_long(&request.domain) {
        return invalid(format!("the domain is longer than {MAX_TEXT_BYTES} bytes"));
    }
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        let found = descriptor.entries.len();
        if found > MAX_ENTRIES {
            return invalid(format!(
                "descriptor {index} has {found} entries; at most {MAX_ENTRIES} are allowed"
            ));
        }
        let mut entries = descriptor.entries.iter();
        // A value may be as long as the message: clients of the proxy choose it, and an error would admit their requests.
        if entries.any(|entry| too_long(&entry.key)) {
            return invalid(format!(
                "descriptor {index} has a key of more than {MAX_TEXT_BYTES} bytes"
            ));
        }
    }
    let mut descriptors = request.descriptors.iter();
    if descriptors.any(|descriptor| descriptor.is_negative_hits) && !may_credit {
        Err(Refusal::Denied)
    } else {
        Ok(())
    }
}

/// The key of a limit that a descriptor brings: its domain and entries, and not the limit.
fn key_of_override(domain: &str, descriptor: &RateLimitDescriptor) -> Key {
    let entries = descriptor.entries.iter().flat_map(|entry| {
        let value = if is_credential(&entry.key) {
            Key::secret(&entry.value)
        } else {
            Key::new(&entry.value)
        };
        [Key::new(&entry.key), value]
    });
    Key::tuple(std::iter::once(Key::new(domain)).chain(entries))
}

fn whole_seconds(duration: Duration) -> u64 {
    let begun = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(begun)
}
