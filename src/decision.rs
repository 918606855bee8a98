//! The answer to a request, with one verdict per policy.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    error::StoreError,
    key::Key,
    outcome,
    quota::Quota,
    store::{Ask, Source},
    strategy::{Outlook, Receipt, Retry},
    tier::Tier,
};

/// The answer to a request: whether it was admitted, and how it stands with each policy that applied.
#[derive(Clone)]
pub struct Decision {
    pub(crate) books: Arc<dyn Books>,
    pub(crate) ruling: Ruling,
    pub(crate) source: Source,
    pub(crate) admitted: u64,
    pub(crate) at: Timestamp,
    pub(crate) counted: SmallVec<[Counted; 1]>,
    /// The places of in-flight limits, for as long as the decision or a clone of it lives.
    pub(crate) permit: Option<Arc<dyn Permit>>,
}

/// What became of a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ruling {
    /// It may pass.
    Admitted,
    /// A quota is used up; nothing was charged.
    Exhausted,
    /// The named policy found no key in it, and refuses such requests.
    MissingKey {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// It is on a [deny list](crate::LimiterBuilder::deny); nothing was asked or charged.
    Denied,
    /// The store could not answer, and the limiter was told to refuse then.
    Fault(StoreError),
}

/// Places of in-flight limits, given back when it is dropped.
pub(crate) trait Permit: fmt::Debug + Send + Sync {}

/// Those who keep the counts: what a decision needs of its limiter.
pub(crate) trait Books: Send + Sync {
    /// The name of a policy.
    fn name(&self, policy: u32) -> &str;
    /// The quota that was applied, and the most units that can pass at once.
    fn quota(&self, counted: &Counted) -> (Quota, u64);
    /// Charges past what is left, or gives units of a receipt back.
    fn adjust(&self, ask: Ask, counted: &Counted, receipt: Receipt, units: u64) -> Adjusting;
    /// Gives back what was charged, without waiting for it.
    fn give_back(&self, counted: &[Counted]);
    /// Whether the charge depends on what becomes of the request.
    fn settles(&self, counted: &Counted) -> bool;
    /// Charges or gives back by what became of the request, without waiting for it. If somebody still `watches`, it returns
    /// the charge that is being made, for its receipt.
    fn settle(
        &self,
        counted: &mut Counted,
        outcome: &outcome::Outcome<'_>,
        watches: bool,
    ) -> Option<Adjusting>;
}

/// A charge that is being made or given back.
pub(crate) type Adjusting = Pin<Box<dyn Future<Output = Result<Adjusted, StoreError>> + Send>>;

/// A charge that was made or given back.
#[derive(Debug)]
pub(crate) struct Adjusted {
    /// How many units were.
    pub(crate) units: u64,
    /// Of a charge.
    pub(crate) receipt: Receipt,
    /// How it stands since then.
    pub(crate) outlook: Outlook,
}

/// A piece of a refund: units of one receipt.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) place: usize,
    pub(crate) receipt: Receipt,
    pub(crate) units: u64,
}

/// How it stands with one policy.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) policy: u32,
    pub(crate) part: Part,
    pub(crate) cost: u64,
    pub(crate) key: Key,
    /// Who signs, where charges are signed.
    pub(crate) by: Option<Box<Key>>,
    /// The request's own quota, if it has one, or this process's share of it, if that is what it was judged by.
    pub(crate) tier: Option<Tier>,
    pub(crate) outlook: Outlook,
    /// What was charged on arrival.
    pub(crate) receipt: Receipt,
    /// What became of it since.
    pub(crate) since: Option<Box<Since>>,
}

/// What a policy has to say in a decision. In this order they stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// It is enforced.
    Live,
    /// It counts what the others refuse, and is enforced.
    Ban,
    /// It isn't enforced.
    Shadow {
        /// Whether it would have refused.
        refuses: bool,
    },
}

/// What became of a charge since the request's arrival.
#[derive(Clone, Debug, Default)]
pub(crate) struct Since {
    /// What was charged.
    more: Vec<Receipt>,
    /// Whether the handler has settled it by itself.
    settled: bool,
    /// What was charged without a receipt.
    told: u64,
}

impl Counted {
    /// What is known before the store is asked.
    pub(crate) fn unasked(
        (policy, part): (u32, Part),
        key: Key,
        cost: u64,
        by: Option<Box<Key>>,
        tier: Option<Tier>,
    ) -> Self {
        Self {
            policy,
            part,
            cost,
            key,
            by,
            tier,
            outlook: Outlook {
                remaining: 0,
                retry: Retry::Now,
                reset_after: Duration::ZERO,
            },
            receipt: Receipt::NONE,
            since: None,
        }
    }

    pub(crate) fn is_shadow(&self) -> bool {
        matches!(self.part, Part::Shadow { .. })
    }

    /// Whether it would have refused, had it been enforced.
    pub(crate) fn is_shadow_refusal(&self) -> bool {
        self.part == Part::Shadow { refuses: true }
    }

    /// What was charged, the oldest first.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = &Receipt> {
        let more = self.since.iter().flat_map(|since| &since.more);
        [&self.receipt].into_iter().chain(more)
    }

    fn since(&mut self) -> &mut Since {
        self.since.get_or_insert_default()
    }

    /// Whether the handler has settled it by itself.
    pub(crate) fn is_settled(&self) -> bool {
        self.since.as_ref().is_some_and(|since| since.settled)
    }

    /// Notes that the handler has settled it by itself.
    pub(crate) fn settled(&mut self) {
        self.since().settled = true;
    }

    /// Notes what is charged without a receipt: by the response, or by whoever has not been answered yet.
    pub(crate) fn told(&mut self, units: u64) {
        self.since().told += units;
    }

    /// Notes that whoever charged units was answered.
    pub(crate) fn answered(&mut self, units: u64) {
        let since = self.since();
        since.told = since.told.saturating_sub(units);
    }

    /// What is charged now, as far as was not given back.
    pub(crate) fn net(&self) -> u64 {
        let told = self.since.as_ref().map_or(0, |since| since.told);
        told + self.receipts().map(|receipt| receipt.left).sum::<u64>()
    }

    /// Takes up to `units` off the newest receipt before a place, for them to be given back: one charge after the other, so
    /// that whoever asks for them and is dropped half-way gives nothing twice, and strands nothing.
    pub(crate) fn plan_refund(&mut self, before: usize, units: u64) -> Option<Piece> {
        let more = self.since.iter_mut().flat_map(|since| &mut since.more);
        let receipts = [&mut self.receipt].into_iter().chain(more);
        let older = receipts.enumerate().take(before);
        let (place, receipt) = older.filter(|(_, receipt)| receipt.left > 0).last()?;
        let whole = *receipt;
        let units = units.min(whole.left);
        receipt.left -= units;
        (units > 0).then_some(Piece {
            place,
            receipt: whole,
            units,
        })
    }

    /// Notes what became of a part of a refund: what was not given stays on its receipt.
    pub(crate) fn refunded(&mut self, part: &Piece, adjusted: &Adjusted) {
        let receipt = match part.place {
            0 => Some(&mut self.receipt),
            place => self.since().more.get_mut(place - 1),
        };
        if let Some(receipt) = receipt {
            receipt.left += part.units.saturating_sub(adjusted.units);
        }
        self.outlook = adjusted.outlook;
    }

    /// Notes a charge that was made afterwards.
    pub(crate) fn charged(&mut self, adjusted: &Adjusted) {
        self.outlook = adjusted.outlook;
        self.since().more.push(adjusted.receipt);
    }

    /// Notes that all of it was given back.
    pub(crate) fn given_back(&mut self) {
        self.outlook.remaining += self.net();
        if self.outlook.remaining >= self.cost {
            self.outlook.retry = Retry::Now;
        }
        self.receipt.left = 0;
        if let Some(since) = &mut self.since {
            since.more.clear();
        }
    }
}

impl Decision {
    /// Whether the request may pass.
    pub fn is_admitted(&self) -> bool {
        matches!(self.ruling, Ruling::Admitted)
    }

    /// How many of the requests of a [`check`](crate::Limiter::check) for [several](crate::Check::times) were charged.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// What became of the request.
    pub fn ruling(&self) -> &Ruling {
        &self.ruling
    }

    /// Where the answer came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// One verdict for each policy that applied and is enforced, in the order the policies were given in. None when the
    /// store could not answer. A [ban](crate::Ban) has one while it blocks, and in a [`peek`](crate::Limiter::peek).
    pub fn verdicts(&self) -> impl ExactSizeIterator<Item = Verdict<'_>> {
        let (enforced, _) = self.counted.split_at(self.enforced());
        enforced.iter().map(|counted| self.verdict_of(counted))
    }

    /// One verdict for each policy that applied [in the shadow](crate::Policy::shadow).
    pub fn shadows(&self) -> impl ExactSizeIterator<Item = Verdict<'_>> {
        let (_, shadows) = self.counted.split_at(self.enforced());
        shadows.iter().map(|counted| self.verdict_of(counted))
    }

    /// The verdict of the policy of that name, if it applied: enforced or not.
    pub fn verdict(&self, policy: &str) -> Option<Verdict<'_>> {
        let verdicts = self.counted.iter().map(|counted| self.verdict_of(counted));
        let mut named = verdicts.filter(|verdict| verdict.policy() == policy);
        named.next()
    }

    fn verdict_of<'a>(&'a self, counted: &'a Counted) -> Verdict<'a> {
        Verdict {
            decision: self,
            counted,
        }
    }

    /// How many policies are enforced: they stand first.
    fn enforced(&self) -> usize {
        self.counted.partition_point(|counted| !counted.is_shadow())
    }

    /// When the same request would pass: the longest wait of any policy under which it costs something.
    pub fn retry(&self) -> Retry {
        let (enforced, _) = self.counted.split_at(self.enforced());
        let charged = enforced.iter().filter(|counted| counted.cost > 0);
        let waits = charged.map(|counted| counted.outlook.retry);
        waits.max().unwrap_or(Retry::Now)
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("ruling", &self.ruling)
            .field("source", &self.source)
            .field("verdicts", &self.verdicts().collect::<Vec<_>>())
            .field("shadows", &self.shadows().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// How a request stands with one policy.
#[derive(Clone, Copy)]
pub struct Verdict<'a> {
    decision: &'a Decision,
    counted: &'a Counted,
}

impl<'a> Verdict<'a> {
    /// The policy's name.
    pub fn policy(&self) -> &'a str {
        self.decision.books.name(self.counted.policy)
    }

    /// The quota that was applied.
    pub fn quota(&self) -> Quota {
        self.decision.books.quota(self.counted).0
    }

    /// The most units that can pass at once.
    pub fn limit(&self) -> u64 {
        self.decision.books.quota(self.counted).1
    }

    /// What the request cost, or would have.
    pub fn cost(&self) -> u64 {
        self.counted.cost
    }

    /// Whole units left, after this request if it was admitted.
    pub fn remaining(&self) -> u64 {
        self.counted.outlook.remaining
    }

    /// When another request of the same cost would pass this policy.
    pub fn retry(&self) -> Retry {
        self.counted.outlook.retry
    }

    /// How long to wait for another request of the same cost to pass, were nobody else to ask; zero if it would pass
    /// now, `None` if it never will.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.counted.outlook.retry {
            Retry::Now => Some(Duration::ZERO),
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        }
    }

    /// How long until the full quota is available again, were nobody else to ask.
    pub fn reset_after(&self) -> Duration {
        self.counted.outlook.reset_after
    }

    /// Whether the policy is judged and not enforced: see [`Policy::shadow`](crate::Policy::shadow).
    pub fn is_shadow(&self) -> bool {
        self.counted.is_shadow()
    }

    /// Whether this policy would have refused the request, were it enforced: what [`refused`](Verdict::refused) says of
    /// those that are.
    pub fn would_refuse(&self) -> bool {
        self.refused() || self.counted.is_shadow_refusal()
    }

    /// Whether this policy refused the request; never, in the shadow.
    pub fn refused(&self) -> bool {
        matches!(self.decision.ruling, Ruling::Exhausted)
            && !self.is_shadow()
            && self.counted.cost > 0
            && self.counted.outlook.retry != Retry::Now
    }
}

impl fmt::Debug for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdict")
            .field("policy", &self.policy())
            .field("limit", &self.limit())
            .field("cost", &self.cost())
            .field("remaining", &self.remaining())
            .field("retry", &self.retry())
            .field("reset_after", &self.reset_after())
            .field("refused", &self.refused())
            .field("would_refuse", &self.would_refuse())
            .finish()
    }
}
