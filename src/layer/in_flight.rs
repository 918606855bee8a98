use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::{HeaderMap, Method, Response, StatusCode};

use crate::{
    admission::Admission,
    decision::PermitHandle,
    outcome::{Head, Outcome, RequestEnd},
};

/// What a layer holds of a request that it let in, until its response's body has ended: where the decision stands in the
/// request's admission, the permit, and what has to be known to settle the charge.
///
/// Dropped, it settles as for a request that was dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    admission: Admission,
    place: usize,
    _permit: Option<Arc<dyn PermitHandle>>,
    /// None if the charge doesn't depend on what becomes of the request.
    course: Option<Course>,
}

/// What is known so far of what becomes of a request.
#[derive(Debug, Default)]
pub(crate) struct Course {
    head: Option<Head>,
    trailers: Option<HeaderMap>,
    /// Whether the body is never polled, since none is sent.
    bodiless: bool,
    /// Whether a success opens a tunnel, such as a WebSocket over HTTP/2, in place of a body.
    connects: bool,
    /// Whether the body has said that it is at its end, so that it may not be polled again.
    at_end: AtomicBool,
    /// Bytes of the body that are yet to come, if its length is known.
    due: Option<u64>,
}

impl Course {
    /// Of a request by a method.
    pub(crate) fn new(method: &Method) -> Self {
        Self {
            bodiless: *method == Method::HEAD,
            connects: *method == Method::CONNECT,
            ..Self::default()
        }
    }
}

impl Ticket {
    /// Of the decision at a place of an admission.
    pub(crate) fn new(
        admission: Admission,
        place: usize,
        permit: Option<Arc<dyn PermitHandle>>,
        course: Option<Course>,
    ) -> Self {
        Self {
            admission,
            place,
            _permit: permit,
            course,
        }
    }

    /// There is a response.
    pub(crate) fn respond<B>(
        mut self: Box<Self>,
        response: Response<B>,
    ) -> (Response<B>, Box<Self>) {
        let Some(course) = &mut self.course else {
            return (response, self);
        };
        let (parts, body) = response.into_parts();
        let status = parts.status;
        let bodiless = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
        let length = parts.headers.get(http::header::CONTENT_LENGTH);
        course.due = length.and_then(|length| length.to_str().ok()?.parse().ok());
        course.head = Some(Head::of(&parts));
        course.bodiless |= bodiless || course.connects && status.is_success();
        (Response::from_parts(parts, body), self)
    }

    /// Whether the body will never be polled.
    pub(crate) fn is_bodiless(&self) -> bool {
        self.course.as_ref().is_some_and(|course| course.bodiless)
    }

    /// The body has said that it is at its end.
    pub(crate) fn note_end(&self) {
        if let Some(course) = &self.course {
            course.at_end.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes of the body are on their way.
    pub(crate) fn sent(&mut self, bytes: usize) {
        if let Some(due) = self.course.as_mut().and_then(|course| course.due.as_mut()) {
            *due = due.saturating_sub(bytes as u64);
        }
    }

    pub(crate) fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(course) = &mut self.course {
            course.trailers = Some(trailers.clone());
        }
    }

    /// It is over.
    pub(crate) fn end(mut self, end: RequestEnd) {
        self.settle(end);
    }

    /// It is over but for its body, which is not sent: settles the charge, and keeps the place.
    pub(crate) fn settle(&mut self, end: RequestEnd) {
        if let Some(course) = self.course.take() {
            let outcome = Outcome::new(course.head.as_ref(), course.trailers.as_ref(), end);
            self.admission.settle_outcome(self.place, &outcome);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let end = self.course.as_ref().map(|course| match course.head {
            None => RequestEnd::Dropped,
            Some(_) if course.at_end.load(Ordering::Relaxed) || course.due == Some(0) => {
                RequestEnd::Completed
            }
            Some(_) => RequestEnd::BodyDropped,
        });
        if let Some(end) = end {
            self.settle(end);
        }
    }
}
