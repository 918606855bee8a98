//! Where a request passes or is refused, whatever its service is.

use http::{Response, request::Parts};

use super::ticket::{Course, Ticket};
use crate::{
    admission::Admission,
    decision::Decision,
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
    pub(super) fn enter(&self, decision: &mut Option<Decision>, parts: &mut Parts) -> Entry {
        let outer = parts.extensions.get::<Admission>();
        if let Some(refused) = decision.as_ref().filter(|judged| !judged.is_admitted()) {
            if let Some(admission) = outer {
                admission.withdraw();
            }
            return Entry::Refused(self.answers.refuse(refused, parts));
        }
        let settles = decision.as_ref().is_some_and(Decision::settles);
        let (admission, (place, permit), joins) = match outer {
            Some(outer) => (outer.clone(), outer.join(decision), true),
            None => {
                let (admission, permit) = Admission::first(decision);
                (admission, (0, permit), false)
            }
        };
        let fields = self.answers.headers;
        let told = (!fields.are_none()).then(|| Told {
            admission: admission.clone(),
            place,
            fields,
        });
        let ticket = (settles || permit.is_some()).then(|| {
            let course = settles.then(|| Course::new(&parts.method));
            Box::new(Ticket::new(admission.clone(), place, permit, course))
        });
        if !joins {
            parts.extensions.insert(admission);
        }
        Entry::Passes(Pass { told, ticket })
    }
}

impl Told {
    /// Tells how the decision stands by now.
    pub(super) fn tell<B>(self, response: &mut Response<B>) {
        let fields = self.fields;
        let tell = |decision: &Decision| tell(decision, fields, Delay::NONE, response);
        self.admission.look_at(self.place, tell);
    }
}
