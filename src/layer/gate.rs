//! Where a request passes or is refused, whatever its service is.

use http::{Response, request::Parts};

use super::ticket::{Course, Ticket};
use crate::{
    admission::Admission,
    decision::{Brief, Decision},
    limiter::Limiter,
    respond::{Answers, Delay, Headers, RefusalBody, tell},
};

/// What all services behind a layer share.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) limiter: Limiter,
    pub(super) answers: Answers,
}

/// What becomes of a request.
pub(super) enum Entry {
    Passes(Pass),
    Refused(Response<RefusalBody>),
}

/// What is kept of a request while it is served.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// If the response is to tell how it stands.
    pub(super) told: Option<Told>,
    /// If something is to be done when it has ended.
    pub(super) ticket: Option<Box<Ticket>>,
}

/// Where a decision stands that the response tells of.
#[derive(Debug)]
pub(super) struct Told {
    admission: Admission,
    place: usize,
    fields: Headers,
}

impl Gate {
    /// Lets a request in, which takes the decision with it, or refuses it.
    pub(super) fn enter(&self, decision: Decision, parts: &mut Parts) -> Entry {
        let outer = parts.extensions.get::<Admission>();
        if !decision.is_admitted() {
            return Entry::Refused(self.refuse(outer, &decision, parts));
        }
        let settles = decision.settles();
        let (admission, (place, permit), joins) = match outer {
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
        let told = self.told(&admission, place);
        if !joins {
            parts.extensions.insert(admission);
        }
        Entry::Passes(Pass { told, ticket })
    }

    /// Lets a request in, which takes the decision with it.
    #[inline]
    pub(super) fn pass(&self, brief: Brief, parts: &mut Parts) -> Entry {
        if parts.extensions.get::<Admission>().is_some() {
            return self.enter(brief.decision(), parts);
        }
        let admission = Admission::brief(brief);
        let told = self.told(&admission, 0);
        parts.extensions.insert(admission);
        Entry::Passes(Pass { told, ticket: None })
    }

    fn told(&self, admission: &Admission, place: usize) -> Option<Told> {
        let fields = self.answers.headers;
        (!fields.are_none()).then(|| Told {
            admission: admission.clone(),
            place,
            fields,
        })
    }

    fn refuse(
        &self,
        outer: Option<&Admission>,
        decision: &Decision,
        parts: &Parts,
    ) -> Response<RefusalBody> {
        if let Some(admission) = outer {
            admission.withdraw();
        }
        self.answers.refuse(decision, parts)
    }
}

impl Told {
    /// Tells how the decision stands by now.
    pub(super) fn tell<B>(self, response: &mut Response<B>) {
        let fields = self.fields;
        let tell = |decision: &Decision| tell(decision, fields, Delay::NONE, response);
        self.admission.last_look(self.place, tell);
    }
}
