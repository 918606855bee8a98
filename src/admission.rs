//! What a handler holds of its own request's decision, and what a refused caller gets.

use std::{
    error, fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{
    decision::{Brief, Decision, Permit, Ruling},
    error::StoreError,
    outcome::Outcome,
    respond::Headers,
    strategy::Retry,
};

/// A handler's handle to how its request was judged.
///
/// It is in the request's extensions behind a [`RateLimitLayer`](crate::RateLimitLayer), and with feature `axum` it is
/// an extractor. Where layers are stacked, all share one.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use tollgate::Admission;
///
/// async fn handler(admission: Admission) -> String {
///     format!("{:?} left", admission.remaining("burst"))
/// }
/// # let _: axum::routing::MethodRouter = axum::routing::get(handler);
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Admission {
    shared: Arc<Mutex<Judged>>,
}

/// Whose turn it is to settle.
type Turn = tokio::sync::Mutex<()>;

#[derive(Default)]
struct Judged {
    /// The outermost layer's.
    first: First,
    more: Option<Box<More>>,
}

/// The decision of the outermost layer.
#[derive(Default)]
enum First {
    #[default]
    None,
    /// In few words, until somebody wants to see it.
    Brief(Brief),
    Made(Box<Decision>),
}

/// What most requests don't have.
#[derive(Default)]
struct More {
    /// The decisions of layers further in.
    others: Vec<Decision>,
    /// The permits of all, which the layers hold.
    permits: Vec<Weak<dyn Permit>>,
    /// The permit, where there is no layer to hold it.
    permit: Option<Arc<dyn Permit>>,
    turn: Option<Arc<Turn>>,
}

impl Judged {
    /// Adds a decision; returns its place, and its permit.
    fn add(&mut self, mut decision: Decision) -> (usize, Option<Arc<dyn Permit>>) {
        let permit = decision.permit.take();
        if let Some(permit) = &permit {
            self.more().permits.push(Arc::downgrade(permit));
        }
        if let First::None = self.first {
            self.first = First::Made(Box::new(decision));
            return (0, permit);
        }
        let others = &mut self.more().others;
        others.push(decision);
        (others.len(), permit)
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    fn first(&mut self) -> Option<&mut Decision> {
        if let First::Brief(_) = self.first
            && let First::Brief(brief) = mem::take(&mut self.first)
        {
            self.first = First::Made(Box::new(brief.decision()));
        }
        match &mut self.first {
            First::Made(decision) => Some(decision),
            _ => None,
        }
    }

    fn decisions(&mut self) -> impl Iterator<Item = &mut Decision> {
        self.first();
        let first = match &mut self.first {
            First::Made(decision) => Some(&mut **decision),
            _ => None,
        };
        let others = self.more.iter_mut().flat_map(|more| &mut more.others);
        first.into_iter().chain(others)
    }

    /// The decision at a place.
    fn at(&mut self, place: usize) -> Option<&mut Decision> {
        match place.checked_sub(1) {
            None => self.first(),
            Some(place) => self.more.as_mut()?.others.get_mut(place),
        }
    }
}

/// Keeps the places of in-flight limits past the response: for a WebSocket, or work that goes on in the background.
#[derive(Clone, Debug)]
#[must_use = "the permits are released when this is dropped"]
pub struct Hold {
    _permits: Vec<Arc<dyn Permit>>,
}

impl Admission {
    /// An admission that holds the decision's permit.
    fn of(decision: Decision) -> Self {
        let (admission, permit) = Self::first(decision);
        admission.hold_permit(permit);
        admission
    }

    fn hold_permit(&self, permit: Option<Arc<dyn Permit>>) {
        if permit.is_some() {
            self.lock().more().permit = permit;
        }
    }

    /// An admission for a layer that is the first; returns the decision's permit too, which the layer holds.
    pub(crate) fn first(decision: Decision) -> (Self, Option<Arc<dyn Permit>>) {
        let admission = Self::default();
        let (_, permit) = admission.lock().add(decision);
        (admission, permit)
    }

    /// An admission for a layer that is the first, of a decision in few words.
    #[inline]
    pub(crate) fn brief(decision: Brief) -> Self {
        let judged = Judged {
            first: First::Brief(decision),
            more: None,
        };
        Self {
            shared: Arc::new(Mutex::new(judged)),
        }
    }

    /// Whose turn it is to settle.
    pub(crate) fn turn(&self) -> Arc<Turn> {
        let mut judged = self.lock();
        judged.more().turn.get_or_insert_default().clone()
    }

    /// Holds the request's places of in-flight limits until what is returned is dropped. By itself a request holds them
    /// until its response's body has been sent or dropped: a stream's, until it ends.
    ///
    /// A WebSocket's response is its handshake (RFC 6455), which has no body: its place is free as soon as it is open,
    /// unless it is held. Its charge is settled by the handshake in any case.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{
    ///     extract::ws::{WebSocket, WebSocketUpgrade},
    ///     response::Response,
    /// };
    /// use tollgate::Admission;
    ///
    /// async fn echo(upgrade: WebSocketUpgrade, admission: Admission) -> Response {
    ///     let places = admission.hold();
    ///     upgrade.on_upgrade(async move |mut socket: WebSocket| {
    ///         while let Some(Ok(message)) = socket.recv().await {
    ///             if socket.send(message).await.is_err() {
    ///                 break;
    ///             }
    ///         }
    ///         drop(places);
    ///     })
    /// }
    /// # let _: axum::routing::MethodRouter = axum::routing::any(echo);
    /// # }
    /// ```
    ///
    /// A client that has gone without a word holds its place until the connection is found broken: send pings, and end
    /// those that don't answer.
    pub fn hold(&self) -> Hold {
        let judged = self.lock();
        let permits = judged.more.iter().flat_map(|more| &more.permits);
        Hold {
            _permits: permits.filter_map(Weak::upgrade).collect(),
        }
    }

    /// For requests that no layer judged.
    pub(crate) fn unlimited() -> Self {
        Self::default()
    }

    /// Every layer's decision on this request, the outermost first.
    pub fn decisions(&self) -> Vec<Decision> {
        self.lock()
            .decisions()
            .map(|decision| decision.clone())
            .collect()
    }

    /// Units left under the policy of that name, after this request; `None` if it didn't apply.
    pub fn remaining(&self, policy: &str) -> Option<u64> {
        let mut judged = self.lock();
        let mut left = judged
            .decisions()
            .filter_map(|decision| decision.verdict(policy).map(|v| v.remaining()));
        left.next()
    }

    /// Joins the decision of a layer, which holds its permit; returns where it stands.
    pub(crate) fn join(&self, decision: Decision) -> (usize, Option<Arc<dyn Permit>>) {
        self.lock().add(decision)
    }

    /// Does something to the decision at a place.
    pub(crate) fn with<T>(&self, place: usize, with: impl FnOnce(&mut Decision) -> T) -> Option<T> {
        self.lock().at(place).map(with)
    }

    /// Looks a last time at the decision at a place, as it stands now.
    pub(crate) fn last_look(self, place: usize, look: impl FnOnce(&Decision)) {
        match Arc::try_unwrap(self.shared) {
            // Nobody else has it any more.
            Ok(shared) => {
                let judged = shared.into_inner();
                let mut judged = judged.unwrap_or_else(PoisonError::into_inner);
                match judged.first {
                    First::Brief(brief) if place == 0 => look(&brief.decision()),
                    _ => judged
                        .at(place)
                        .map(|decision| look(decision))
                        .unwrap_or(()),
                }
            }
            Err(shared) => {
                Self { shared }.with(place, |decision| look(decision));
            }
        }
    }

    /// A layer further in refused: gives back what the others charged, without waiting for it.
    pub(crate) fn withdraw(&self) {
        let mut judged = self.lock();
        for decision in judged.decisions() {
            decision.books.give_back(&decision.counted);
            for counted in &mut decision.counted {
                counted.given_back(&*decision.books);
                counted.settled();
            }
        }
    }

    /// Whether the charge of the decision at a place depends on what becomes of the request.
    pub(crate) fn settles(&self, place: usize) -> bool {
        self.lock()
            .at(place)
            .is_some_and(|decision| decision.settles())
    }

    /// Settles the decision at a place by what became of its request, without waiting for it.
    pub(crate) fn settle_by(&self, place: usize, outcome: &Outcome<'_>) {
        // A handler's task may go on and settle what the response charges.
        let watches = Arc::strong_count(&self.shared) > 1;
        let handle = Handle::try_current().ok().filter(|_| watches);
        let mut charging = Vec::new();
        if let Some(decision) = self.lock().at(place) {
            for (index, counted) in decision.counted.iter_mut().enumerate() {
                let charge = decision.books.settle(counted, outcome, handle.is_some());
                charging.extend(charge.map(|charge| (index, counted.cost, charge)));
            }
        }
        let Some(handle) = handle.filter(|_| !charging.is_empty()) else {
            return;
        };
        // It waits for its turn behind this, unless it has it already.
        let turn = self.turn().try_lock_owned();
        let admission = self.clone();
        drop(handle.spawn(async move {
            let _turn = turn;
            for (index, units, charge) in charging {
                let charged = charge.await;
                admission.with(place, |decision| {
                    let counted = decision.counted.get_mut(index)?;
                    counted.answered(units);
                    charged.ok().map(|charged| counted.charged(&charged))
                });
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, Judged> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lock().decisions()).finish()
    }
}

/// What a denied caller gets: the error of [`Decision::into_result`].
///
/// With feature `axum` it is a response, the same as the layer's own refusal; with feature `tonic` it converts into a
/// `tonic::Status`.
#[derive(Clone, Debug)]
pub struct Refused {
    decision: Box<Decision>,
    fields: Headers,
}

impl Refused {
    pub(crate) fn new(decision: Decision) -> Self {
        Self {
            decision: Box::new(decision),
            fields: Headers::default(),
        }
    }

    /// Which fields it has as a response: those of [`Headers::draft`], unless set. A layer that was told to use others
    /// does so for its own refusals.
    #[must_use]
    pub fn headers(mut self, headers: Headers) -> Self {
        self.fields = headers;
        self
    }

    pub(crate) fn fields(&self) -> Headers {
        self.fields
    }

    /// The decision that refused it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How long to wait; `None` if waiting doesn't help, or it isn't known.
    pub fn retry_after(&self) -> Option<Duration> {
        match (self.decision.ruling(), self.decision.retry()) {
            (Ruling::Exhausted, Retry::After(wait)) => Some(wait),
            (Ruling::Fault(StoreError::Open { retry_after }), _) => Some(*retry_after),
            _ => None,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision.ruling() {
            Ruling::Admitted => f.write_str("admitted"),
            Ruling::Exhausted => {
                f.write_str("quota exceeded:")?;
                let mut refused = self.decision.verdicts().filter(|v| v.refused());
                refused.try_for_each(|verdict| write!(f, " {}", verdict.policy()))?;
                match self.decision.retry() {
                    Retry::After(wait) => write!(f, "; retry after {wait:?}"),
                    _ => f.write_str("; it costs more than the quota ever allows"),
                }
            }
            Ruling::MissingKey { policy } => {
                write!(f, "the request has no key for policy {policy:?}")
            }
            Ruling::Denied => f.write_str("the request is on a deny list"),
            Ruling::Fault(error) => write!(f, "the store of the rate limits is at fault: {error}"),
        }
    }
}

impl error::Error for Refused {}

impl Decision {
    /// Whether its charge depends on what becomes of the request.
    pub(crate) fn settles(&self) -> bool {
        self.counted
            .iter()
            .any(|counted| self.books.settles(counted))
    }

    /// The way on for those who were admitted, and the way out for those who were not.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the request may not pass.
    pub fn into_result(self) -> Result<Admission, Refused> {
        if self.is_admitted() {
            Ok(Admission::of(self))
        } else {
            Err(Refused::new(self))
        }
    }
}
