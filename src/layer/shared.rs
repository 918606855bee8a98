//! Where a request passes or is refused, whatever its service is.

use std::sync::Arc;

use http::{Response, request::Parts};

use super::in_flight::{Course, Ticket};
use crate::{
    admission::{Admission, Rejected},
    decision::{CompactDecision, Decision},
    limiter::Limiter,
    respond::{Answers, Delay, KeptRequest, RateLimitHeaders, RefusalBody, tell},
    sync::{CachePadded, ShardedArc},
};

/// What all services behind a layer share, as one thread refers to it. Padded, since its thread counts the references to it.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) limiter: CachePadded<Limiter>,
    pub(crate) answers: Answers,
}

/// How a service holds on to its gate. The first, which a layer makes, has all of the gate's handles; its clones, which routers
/// make for each request, have the one of their thread.
#[derive(Debug)]
pub(crate) enum Held {
    All(Arc<ShardedArc<Gate>>),
    One(Arc<Gate>),
}

impl Held {
    #[inline]
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        match self {
            Self::All(gates) => gates.local(),
            Self::One(gate) => gate,
        }
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        Self::One(self.gate().clone())
    }
}

/// What is kept of a request while it is served.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// If the response is to tell how it stands.
    pub(crate) told: Option<Told>,
    /// If something is to be done when it has ended.
    pub(crate) ticket: Option<Box<Ticket>>,
    /// What answers it if its handler rejects it.
    pub(crate) rejection: Option<HandlerRejection>,
}

/// What a layer needs to answer a request that its handler rejects.
#[derive(Debug)]
pub(crate) struct HandlerRejection {
    gate: Arc<Gate>,
    request: KeptRequest,
}

/// On a response: a layer further in has answered for the handler, which rejected the request.
#[derive(Clone, Copy, Debug)]
struct RejectedByHandler;

/// Where a decision stands that the response tells of.
#[derive(Debug)]
pub(crate) struct Told {
    admission: Admission,
    place: usize,
    fields: RateLimitHeaders,
}

impl Gate {
    /// Lets a request in that is admitted, and that takes the decision with it.
    pub(crate) fn admit(self: &Arc<Self>, decision: Decision, parts: &mut Parts) -> Pass {
        let rejection = Some(self.rejection(parts));
        let settles = decision.depends_on_outcome();
        let (admission, (place, permit), joins) = match parts.extensions.get::<Admission>() {
            Some(outer) => (outer.clone(), outer.join(decision), true),
            None => {
                let (admission, permit) = Admission::first(decision);
                (admission, (0, permit), false)
            }
        };
        let ticket = (settles || permit.is_some()).then(|| {
            let course = settles.then(|| Course::new(&parts.method));
            Box::new(Ticket::new(admission.clone(), place, permit, course))
        });
        let told = self.pending_fields(&admission, place);
        if !joins {
            parts.extensions.insert(admission);
        }
        Pass {
            told,
            ticket,
            rejection,
        }
    }

    fn rejection(self: &Arc<Self>, parts: &Parts) -> HandlerRejection {
        HandlerRejection {
            request: self.answers.keep(parts),
            gate: self.clone(),
        }
    }

    /// Lets a request in, which takes the decision with it in few words.
    #[inline]
    pub(crate) fn pass(self: &Arc<Self>, brief: CompactDecision, parts: &mut Parts) -> Pass {
        if parts.extensions.get::<Admission>().is_some() {
            return self.admit(brief.decision(), parts);
        }
        let rejection = Some(self.rejection(parts));
        let admission = Admission::compact(brief);
        let told = self.pending_fields(&admission, 0);
        parts.extensions.insert(admission);
        Pass {
            told,
            ticket: None,
            rejection,
        }
    }

    /// Refuses a request. What layers further out have charged it is given back.
    pub(crate) fn refuse(&self, decision: &Decision, parts: &Parts) -> Response<RefusalBody> {
        if let Some(outer) = parts.extensions.get::<Admission>() {
            outer.rollback();
        }
        self.answers.refuse(decision, parts)
    }

    fn pending_fields(&self, admission: &Admission, place: usize) -> Option<Told> {
        let fields = self.answers.headers;
        let refunds = self.answers.refunds_handler_rejections;
        (refunds || !fields.are_none()).then(|| Told {
            admission: admission.clone(),
            place,
            fields,
        })
    }
}

impl Told {
    /// Whether a policy of its decision has the name of one in another decision.
    fn names_one_of(&self, other: &Decision) -> bool {
        let named = |decision: &mut Decision| {
            let mut policies = decision.policies();
            policies.any(|policy| other.policy(policy.policy()).is_some())
        };
        self.admission
            .with_decision(self.place, named)
            .unwrap_or(false)
    }

    /// Tells how the decision stands by now.
    pub(crate) fn tell<B>(self, response: &mut Response<B>) {
        let fields = self.fields;
        let tell = |decision: &Decision| tell(decision, fields, Delay::NONE, response);
        self.admission.into_decision(self.place, tell);
    }
}

impl Pass {
    /// Answers for the handler, if it rejected the request. A layer further out refunds its charge, if it is set to.
    pub(crate) fn rejected<B>(
        &mut self,
        response: Response<B>,
    ) -> Result<Response<RefusalBody>, Response<B>> {
        let mut response = response;
        let Some(HandlerRejection { gate, request }) = &self.rejection else {
            return Err(response);
        };
        let rejected = response.extensions_mut().remove::<Rejected>();
        let further_in = response.extensions().get::<RejectedByHandler>().is_some();
        if gate.answers.refunds_handler_rejections
            && (rejected.is_some() || further_in)
            && let Some(told) = &self.told
        {
            told.admission.rollback_at(told.place);
        }
        let Some(rejected) = rejected else {
            return Err(response);
        };
        let mut answer = gate
            .answers
            .answer_for_handler(&rejected, request, response);
        answer.extensions_mut().insert(RejectedByHandler);
        // A policy appears once: in the rejection, where it is one of the same name.
        let told = self
            .told
            .take_if(|told| told.names_one_of(rejected.decision()));
        drop(told);
        Ok(answer)
    }
}
