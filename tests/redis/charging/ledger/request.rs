//! What one request goes through, from its arrival to its end.

use std::pin::pin;

use tokio::sync::oneshot;
use tollgate_tests::{
    charges::{charge_every, refund_every, settle_every},
    prelude::*,
};

use super::{
    records::{ALL, Action, Record},
    store::LIMIT,
    traffic::{COST, Kind, Shared},
};
use crate::charging::support::*;

/// When a request is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Arrival,
    Reserve,
    /// Refunds dropped requests, too.
    Lenient,
    Response,
}

/// Whether a future is dropped before it is ready, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drops {
    Not,
    /// At once: it may not have been sent yet.
    Sent,
    /// When its result is there, unread.
    Completed,
}

impl Drops {
    pub(super) fn one_in(n: u64, rng: &mut Rng) -> Self {
        match rng.below(2 * n) {
            0 => Self::Sent,
            1 => Self::Completed,
            _ => Self::Not,
        }
    }

    /// Runs what is sent to the store when it is polled first; or drops it then. None if it is dropped.
    pub(super) async fn run<T>(self, shared: &Shared, sent: impl Future<Output = T>) -> Option<T> {
        if self == Self::Not {
            return Some(sent.await);
        }
        let mut sent = pin!(sent);
        let done = sent.as_mut().now_or_never();
        if done.is_none() && self == Self::Completed {
            // Results come in the order of the requests.
            let _ = shared.limiter.peek(KEY).cost(1).await.expect("a response");
        }
        done
    }
}

/// A request in flight.
pub(super) struct ActiveRequest {
    pub(super) number: u64,
    pub(super) mode: Mode,
    pub(super) cost: u64,
    /// What the tally still has of it, and of which instant.
    pub(super) counted: (u64, i64),
    /// What it is charged, at least.
    pub(super) net: i64,
    /// Whether the handler has charged by itself.
    pub(super) charged: bool,
    pub(super) handle: Handle,
}

pub(super) enum Handle {
    /// Without a layer, refunded under all policies at once.
    Whole(Admission),
    /// Without a layer, charged, refunded and settled under each policy.
    ByPolicy(Admission),
    /// In a handler, which waits for the ending it is to have.
    Handler(Admission, PendingResponse, oneshot::Sender<Ending>),
}

pub(super) type PendingResponse =
    Pin<Box<dyn Future<Output = Result<LayerResponse, Infallible>> + Send>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Succeeds,
    Fails,
    Breaks,
}

impl ActiveRequest {
    /// The handler charges or refunds, and may drop the future of that.
    pub(super) async fn adjust(&mut self, shared: &Shared, rng: &mut Rng, instant: u64) {
        let units = 1 + rng.below(COST) as i64;
        let what = match rng.below(8) {
            0..=2 => Action::Refund(units),
            3..=4 => Action::Charge(1 + units / 3),
            _ => Action::Settle(rng.below(2 * COST) as i64),
        };
        let less = rng.below(1 + self.net as u64) as i64;
        let what = match (what, &self.handle, shared.kind) {
            (_, Handle::Whole(_), _) => Action::Refund(units),
            (Action::Refund(_), ..) | (_, _, Kind::Little) => what,
            // Among debts, a charge may be cut short: it is refunded before the count is compared.
            (Action::Charge(_), _, Kind::Debts) => Action::Debt(LIMIT + 30 * units, less),
            _ => Action::Settle(less),
        };
        let drops = match what {
            Action::Refund(_) | Action::Charge(_) => Drops::one_in(3, rng),
            _ => Drops::Not,
        };
        let (more, net) = match what {
            Action::Charge(units) => (units, self.net + units),
            Action::Settle(units) => (units - self.net, units),
            Action::Debt(_, units) => (0, units),
            Action::Refund(units) => (0, (self.net - units).max(0)),
            Action::Acquire(_) => return,
        };
        if shared.may_charge(more.max(0)) {
            self.net = net;
            self.change(shared, what, drops, instant).await;
        }
    }

    async fn change(&mut self, shared: &Shared, what: Action, drops: Drops, instant: u64) {
        let gives = match what {
            Action::Charge(_) | Action::Acquire(_) => 0,
            Action::Refund(units) => units,
            Action::Settle(_) | Action::Debt(..) => ALL,
        };
        self.record_refund(shared, instant, gives).await;
        // Waits for the result of an adjustment that was dropped: until then another one is not sent.
        self.handle
            .act(Action::Refund(0))
            .await
            .expect("a response");
        shared.record(self.number, Record::Starts(what));
        let acting = self.handle.act(what);
        let record = match drops.run(shared, acting).await {
            Some(done) => done.map(|()| Record::Done).expect("a response"),
            None => Record::Dropped,
        };
        self.charged |= !matches!(what, Action::Refund(_));
        shared.record(self.number, record);
    }

    /// Before units are refunded: others may acquire them before the refund is known.
    async fn record_refund(&mut self, shared: &Shared, instant: u64, units: i64) {
        let (at, counted) = &mut self.counted;
        if *at == instant {
            let gone = units.min(*counted);
            *counted -= gone;
            shared.admitted_units.add(instant, -gone).await;
        }
    }

    /// The request ends, in one of six ways.
    pub(super) async fn end(mut self, shared: &Shared, instant: u64, way: u64) {
        let ending = match way {
            0..=2 => Some(Ending::Succeeds),
            3 => Some(Ending::Fails),
            4 => Some(Ending::Breaks),
            _ => None,
        };
        let charges = match ending {
            Some(ending) => ending == Ending::Succeeds,
            None => self.mode != Mode::Lenient,
        };
        let what = match self.mode {
            Mode::Reserve | Mode::Lenient if !charges => Some(Action::Refund(ALL)),
            Mode::Response if charges && !self.charged => Some(Action::Charge(self.cost as i64)),
            _ => None,
        };
        if let Some(what) = what {
            if matches!(what, Action::Refund(_)) {
                self.record_refund(shared, instant, ALL).await;
            }
            shared.record(self.number, Record::Starts(what));
        }
        if let Handle::Handler(_, pending, end) = self.handle {
            match ending {
                Some(ending) => {
                    end.send(ending).expect("a handler");
                    let Ok(response) = pending.await;
                    drop(read(response).await);
                }
                None => drop(pending),
            }
        }
        if what.is_some() {
            shared.record(self.number, Record::Sent);
        }
    }
}

impl Handle {
    /// Sends a request through a layer, up to its handler; if it `drops`, it may not get that far.
    pub(super) async fn pass(
        shared: &Shared,
        layer: &RateLimitLayer,
        cost: u64,
        drops: Drops,
    ) -> Option<Self> {
        let (admit, mut admitted) = oneshot::channel();
        let (end, ending) = oneshot::channel::<Ending>();
        let once = Arc::new(Mutex::new(Some((admit, ending))));
        let handler = move |request: Request<()>| {
            let (admit, ending) = once.lock().expect("a lock").take().expect("one call");
            let admission = request.extensions().get::<Admission>().cloned();
            drop(admit.send(admission.expect("an admission")));
            async {
                Ok(match ending.await {
                    Ok(Ending::Succeeds) => text(200),
                    Ok(Ending::Breaks) => streamed(vec![data(), broken()]),
                    Ok(Ending::Fails) | Err(_) => text(500),
                })
            }
        };
        let mut request = request();
        request.extensions_mut().insert(cost);
        let service = layer.layer(service_fn(handler));
        let mut pending: PendingResponse = Box::pin(service.oneshot(request));
        let up_to_handler = async {
            tokio::select! {
                biased;
                Ok(response) = &mut pending => {
                    assert_eq!(response.status(), 429);
                    None
                }
                admission = &mut admitted => admission.ok(),
            }
        };
        let admission = drops.run(shared, up_to_handler).await??;
        Some(Self::Handler(admission, pending, end))
    }

    async fn act(&mut self, what: Action) -> Result<(), StoreError> {
        match (self, what) {
            (Self::Whole(admission), Action::Refund(units)) => {
                admission.refund(units as u64).await.map(drop)
            }
            (Self::ByPolicy(admission) | Self::Handler(admission, ..), what) => match what {
                Action::Charge(units) => charge_every(admission, units as u64).await,
                Action::Refund(units) => refund_every(admission, units as u64).await,
                Action::Settle(units) => settle_every(admission, units as u64).await,
                Action::Debt(units, then) => {
                    settle_every(admission, units as u64).await?;
                    tokio::task::yield_now().await;
                    settle_every(admission, then as u64).await
                }
                Action::Acquire(_) => unreachable!("{what:?}"),
            },
            (Self::Whole(_), what) => unreachable!("{what:?}"),
        }
    }
}
