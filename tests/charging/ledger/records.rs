//! What two processes say that they do, and what the store must hold then.

use std::collections::HashMap;

use super::store::{Counts, Receipt};
use crate::strategy_kind::By;

/// What is done about a request, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Charged on arrival, if there is room.
    Take(i64),
    /// Charged past what is left.
    Charge(i64),
    /// Given back; [`ALL`] is all there is.
    Give(i64),
    /// Charged or given back, until so many are charged.
    Settle(i64),
    /// Settled at so many, past the capacity, and then at fewer than before.
    Debt(i64, i64),
}

pub(super) const ALL: i64 = i64::MAX / 4;

/// What a process writes down, with the number of the request that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// It is about to be done.
    Asks(Move),
    /// What was asked for is done.
    Done,
    /// It was refused, which costs nothing.
    Refused,
    /// It was sent, and will be done; no task waits for it.
    Sent,
    /// Its future was dropped. Of what is taken nothing stays; what is charged is on its way, and of what is given back the
    /// newest charge's part.
    Dropped,
}

impl Note {
    pub(super) fn write(self, request: u64) -> String {
        let text = match self {
            Self::Asks(Move::Take(units)) => format!("take {units}"),
            Self::Asks(Move::Charge(units)) => format!("charge {units}"),
            Self::Asks(Move::Give(units)) => format!("give {units}"),
            Self::Asks(Move::Settle(units)) => format!("settle {units}"),
            Self::Asks(Move::Debt(units, then)) => format!("debt {units} {then}"),
            Self::Done => "done".into(),
            Self::Refused => "refused".into(),
            Self::Sent => "sent".into(),
            Self::Dropped => "dropped".into(),
        };
        format!("{request} {text}")
    }

    #[track_caller]
    pub(super) fn read(line: &str) -> (u64, Self) {
        let words: Vec<_> = line.split(' ').collect();
        let units = |place: usize| words[place].parse().expect(line);
        let note = match words[1] {
            "take" => Self::Asks(Move::Take(units(2))),
            "charge" => Self::Asks(Move::Charge(units(2))),
            "give" => Self::Asks(Move::Give(units(2))),
            "settle" => Self::Asks(Move::Settle(units(2))),
            "debt" => Self::Asks(Move::Debt(units(2), units(3))),
            "done" => Self::Done,
            "refused" => Self::Refused,
            "sent" => Self::Sent,
            "dropped" => Self::Dropped,
            _ => panic!("{line}"),
        };
        (words[0].parse().expect(line), note)
    }
}

/// What a request is charged.
#[derive(Debug, Default)]
struct Request {
    /// What can be given back, the oldest first.
    receipts: Vec<Receipt>,
    /// What was sent without waiting for it, and can't be given back.
    sent: i64,
}

impl Request {
    fn net(&self) -> i64 {
        let receipts = self.receipts.iter().map(|receipt| receipt.left);
        self.sent + receipts.sum::<i64>()
    }
}

/// The least and the most that the store must hold. They are the same until a process is killed.
#[derive(Debug)]
pub(super) struct Books {
    least: Counts,
    most: Counts,
    requests: HashMap<u64, Request>,
    /// What was asked for, and has not been answered.
    pending: HashMap<u64, Move>,
    /// What was sent, by request: should it not have been done, how much less is charged, or how much more.
    under_way: Vec<(u64, i64, i64)>,
}

impl Books {
    pub(super) fn new(by: By, now: i64) -> Self {
        Self {
            least: Counts::new(by, now),
            most: Counts::new(by, now),
            requests: HashMap::new(),
            pending: HashMap::new(),
            under_way: Vec::new(),
        }
    }

    pub(super) fn go_to(&mut self, now: i64) {
        self.least.go_to(now);
        self.most.go_to(now);
    }

    /// The least and the most that can be used now.
    pub(super) fn used(&self) -> (i64, i64) {
        (self.least.used(), self.most.used())
    }

    #[track_caller]
    pub(super) fn note(&mut self, request: u64, note: Note) {
        if let Note::Asks(what) = note {
            let before = self.pending.insert(request, what);
            assert_eq!(before, None, "two things at once for request {request}");
            return;
        }
        let what = self.pending.remove(&request).expect("what was asked for");
        let what = self.plain(request, what);
        match (note, what) {
            (Note::Asks(_) | Note::Refused, _) => {}
            (Note::Done, _) => self.post(request, what, true, (true, true)),
            (Note::Dropped, Move::Take(units)) => self.under_way.push((request, 0, units)),
            (Note::Dropped | Note::Sent, Move::Charge(units)) => {
                self.under_way.push((request, units, 0));
                self.least.charge(units);
                self.most.charge(units);
                self.requests.entry(request).or_default().sent += units;
            }
            (Note::Dropped, Move::Give(units)) => {
                let known = self.requests.get(&request).into_iter();
                let mut receipts = known.flat_map(|request| &request.receipts);
                let newest = receipts.rfind(|receipt| receipt.left > 0);
                let units = newest.map_or(0, |newest| units.min(newest.left));
                self.under_way.push((request, 0, units));
                self.post(request, Move::Give(units), false, (true, true));
            }
            (Note::Dropped | Note::Sent, _) => {
                self.under_way.push((request, 0, self.net(request)));
                self.post(request, what, false, (true, true));
            }
        }
    }

    /// Nothing is under way any more.
    #[track_caller]
    pub(super) fn quiet(&mut self) {
        assert_eq!(self.pending, HashMap::new());
        self.under_way.clear();
    }

    /// A process was killed: what it was about may have been done or not. Returns what its requests were charged.
    pub(super) fn crash(&mut self, is_its: impl Fn(u64) -> bool) -> i64 {
        let pending: Vec<_> = self
            .pending
            .extract_if(|request, _| is_its(*request))
            .collect();
        for (request, what) in pending {
            let (most, least) = match what {
                Move::Debt(most, least) => (Move::Settle(most), Move::Settle(least)),
                what => (what, what),
            };
            let (most, least) = (self.plain(request, most), self.plain(request, least));
            if matches!(most, Move::Take(_) | Move::Charge(_)) {
                self.post(request, most, false, (false, true));
            }
            if matches!(least, Move::Give(_)) {
                self.post(request, least, false, (true, false));
            }
        }
        let under_way: Vec<_> = self
            .under_way
            .extract_if(.., |sent| is_its(sent.0))
            .collect();
        for (_, less, more) in under_way {
            let at = self.least.now();
            self.least.give(Receipt { at, left: less }, less);
            self.most.charge(more);
        }
        let requests = self
            .requests
            .iter()
            .filter(|(request, _)| is_its(**request));
        requests.map(|(_, request)| request.net()).sum()
    }

    fn net(&self, request: u64) -> i64 {
        self.requests.get(&request).map_or(0, Request::net)
    }

    /// What settling comes to.
    fn plain(&self, request: u64, what: Move) -> Move {
        match (what, self.net(request)) {
            (Move::Settle(units), net) if units > net => Move::Charge(units - net),
            (Move::Settle(units), net) => Move::Give(net - units),
            (what, _) => what,
        }
    }

    /// Enters what was done, where it counts: at least, at most, or both. What was `answered` is known in full.
    fn post(
        &mut self,
        request: u64,
        what: Move,
        answered: bool,
        (at_least, at_most): (bool, bool),
    ) {
        let what = match what {
            // Whatever it was for a while.
            Move::Debt(_, then) => self.plain(request, Move::Settle(then)),
            what => what,
        };
        let mut counts = Vec::with_capacity(2);
        if at_least {
            counts.push(&mut self.least);
        }
        if at_most {
            counts.push(&mut self.most);
        }
        let receipts = &mut self.requests.entry(request).or_default().receipts;
        match what {
            Move::Take(units) | Move::Charge(units) => {
                for counts in &mut counts {
                    counts.charge(units);
                }
                if let Some(counts) = counts.first().filter(|_| at_least) {
                    let at = counts.now();
                    receipts.push(Receipt { at, left: units });
                }
            }
            Move::Give(mut units) => {
                for receipt in receipts.iter_mut().rev() {
                    let want = units.min(receipt.left);
                    let mut given = 0;
                    for counts in &mut counts {
                        given = counts.give(*receipt, want);
                    }
                    // What was not given stays, where that is known.
                    receipt.left -= if answered { given } else { want };
                    units -= want;
                }
            }
            Move::Settle(_) | Move::Debt(..) => {}
        }
    }
}
