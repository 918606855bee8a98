//! What is known of a request under one policy.

use super::{Adjusted, Books};
use crate::{
    key::Key,
    store::Units,
    strategy::{Outlook, Receipt, Retry, Seen},
    tier::Tier,
};

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
    /// As it was asked for.
    pub(crate) cost: u64,
    pub(crate) key: Key,
    /// Who signs, where charges are signed.
    pub(crate) by: Option<Box<Key>>,
    /// The request's own quota, if it has one, or this process's share of it, if that is what it was judged by.
    pub(crate) tier: Option<Tier>,
    pub(crate) standing: Standing,
    /// What was charged on arrival.
    pub(crate) receipt: Receipt,
    /// What became of it since.
    pub(crate) since: Option<Box<Since>>,
}

/// How a request stands with a policy: nothing but the state that was seen, until somebody wants to know what it means.
/// Most never do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing {
    Seen(Seen),
    Told(Outlook),
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
            standing: Standing::Seen([0; 3]),
            receipt: Receipt::NONE,
            since: None,
        }
    }

    /// What a store is asked for.
    pub(crate) fn units(&self) -> Units {
        Units::new(self.cost)
    }

    /// What may be expected, as far as is known.
    pub(crate) fn outlook(&self, books: &dyn Books) -> Outlook {
        match &self.standing {
            Standing::Seen(seen) => books.outlook(self, seen),
            Standing::Told(outlook) => *outlook,
        }
    }

    /// Notes what more is known of what may be expected.
    pub(crate) fn amend(&mut self, books: &dyn Books, by: impl FnOnce(&mut Outlook)) {
        let mut outlook = self.outlook(books);
        by(&mut outlook);
        self.standing = Standing::Told(outlook);
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
    pub(crate) fn told(&mut self, units: Units) {
        let since = self.since();
        since.told = since.told.saturating_add(units.get());
    }

    /// Notes that whoever charged units was answered.
    pub(crate) fn answered(&mut self, units: Units) {
        let since = self.since();
        since.told = since.told.saturating_sub(units.get());
    }

    /// What is charged now, as far as was not given back.
    pub(crate) fn net(&self) -> u64 {
        let told = self.since.as_ref().map_or(0, |since| since.told);
        let receipts = self.receipts().map(|receipt| receipt.left);
        receipts.fold(told, u64::saturating_add)
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
        self.standing = Standing::Told(adjusted.outlook);
    }

    /// Notes a charge that was made afterwards.
    pub(crate) fn charged(&mut self, adjusted: &Adjusted) {
        self.standing = Standing::Told(adjusted.outlook);
        self.since().more.push(adjusted.receipt);
    }

    /// Notes that all of it was given back.
    pub(crate) fn given_back(&mut self, books: &dyn Books) {
        let (net, cost) = (self.net(), self.cost);
        self.amend(books, |outlook| {
            outlook.remaining = outlook.remaining.saturating_add(net);
            if outlook.remaining >= cost {
                outlook.retry = Retry::Now;
            }
        });
        self.receipt.left = 0;
        if let Some(since) = &mut self.since {
            since.more.clear();
        }
    }
}
