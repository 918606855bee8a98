use http::response::Parts;

use crate::{
    admission::Admission,
    outcome::{Head, Outcome, RequestEnd},
};

/// A call that was let out, until it is known what became of it. Dropped, it settles as for a request that was dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    admission: Admission,
    settled: bool,
}

impl Ticket {
    pub(crate) fn new(admission: Admission) -> Self {
        // Most policies charge whatever becomes of it.
        let settled = !admission.depends_on_outcome(0);
        Self { admission, settled }
    }

    /// There is a response.
    pub(crate) fn respond(mut self, head: impl FnOnce() -> Parts) -> Admission {
        if !self.settled {
            let head = Head::of(&head());
            self.settle(&Outcome::new(Some(&head), None, RequestEnd::Completed));
        }
        self.admission.clone()
    }

    /// The service has failed.
    pub(crate) fn fail(mut self) {
        self.settle(&Outcome::new(None, None, RequestEnd::ServiceFailed));
    }

    fn settle(&mut self, outcome: &Outcome<'_>) {
        if !self.settled {
            self.settled = true;
            self.admission.settle_outcome(0, outcome);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(&Outcome::new(None, None, RequestEnd::Dropped));
    }
}
