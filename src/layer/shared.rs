//! What the services behind one layer share, and what happens to a request once it is decided.

use std::sync::Arc;

use http::{Response, request::Parts};

use super::in_flight::{InFlightRequest, ResponseProgress};
use crate::{
    admission::{Admission, Rejected},
    decision::Decision,
    limiter::LimiterRef,
    respond::{
        KeptRequest, RateLimitHeaders, RejectionBody, ResponseConfig, RetryDelay, write_headers,
    },
    sync::{CachePadded, ShardedArc},
};

/// The limiter and the response settings of a layer. There is one copy per thread, on cache lines of its own, so that counting
/// the references to it causes no contention between threads.
#[derive(Debug)]
pub(crate) struct LayerShared {
    pub(crate) limiter: CachePadded<Arc<LimiterRef>>,
    pub(crate) config: ResponseConfig,
}

/// A service's reference to its [`LayerShared`]. The service that the layer makes has the copies of all threads; its clones,
/// which routers make for each request, have the copy of the thread that cloned them.
#[derive(Debug)]
pub(crate) enum LayerRef {
    All(Arc<ShardedArc<LayerShared>>),
    Local(Arc<LayerShared>),
}

impl LayerRef {
    #[inline]
    pub(crate) fn get(&self) -> &Arc<LayerShared> {
        match self {
            Self::All(shared) => shared.local(),
            Self::Local(shared) => shared,
        }
    }
}

impl Clone for LayerRef {
    fn clone(&self) -> Self {
        Self::Local(self.get().clone())
    }
}

/// What a layer keeps of an admitted request until there is a response.
#[derive(Debug, Default)]
pub(crate) struct RequestGuards {
    /// The header fields to write on the response.
    pub(crate) headers: Option<PendingHeaders>,
    /// Set if the request's end releases a permit or settles a charge.
    pub(crate) in_flight: Option<Box<InFlightRequest>>,
    /// Builds the response if the handler rejects the request.
    pub(crate) handler_rejection: Option<HandlerRejection>,
}

/// What a layer needs to respond to a request that its handler rejects.
#[derive(Debug)]
pub(crate) struct HandlerRejection {
    shared: Arc<LayerShared>,
    request: KeptRequest,
}

/// On a response: an inner layer has replaced the response of a handler that rejected the request.
#[derive(Clone, Copy, Debug)]
struct RejectedByHandler;

/// The decision whose header fields are written on the response.
#[derive(Debug)]
pub(crate) struct PendingHeaders {
    admission: Admission,
    decision_index: usize,
    fields: RateLimitHeaders,
}

impl LayerShared {
    /// Adds the decision of an admitted request to its extensions.
    #[inline(always)]
    pub(crate) fn admit(self: &Arc<Self>, decision: Decision, parts: &mut Parts) -> RequestGuards {
        let handler_rejection = Some(self.handler_rejection(parts));
        let outer = parts.extensions.get::<Admission>().cloned();
        let is_inner = outer.is_some();
        let (admission, added) = match outer {
            None => Admission::first(decision),
            Some(outer) => {
                let added = outer.join(decision);
                (outer, added)
            }
        };
        let decision_index = added.index;
        let settles = added.depends_on_outcome;
        let in_flight = (settles || added.permit.is_some()).then(|| {
            let progress = settles.then(|| ResponseProgress::new(&parts.method));
            Box::new(InFlightRequest::new(
                admission.clone(),
                decision_index,
                added.permit,
                progress,
            ))
        });
        let headers = self.pending_headers(&admission, decision_index);
        if !is_inner {
            parts.extensions.insert(admission);
        }
        RequestGuards {
            headers,
            in_flight,
            handler_rejection,
        }
    }

    fn handler_rejection(self: &Arc<Self>, parts: &Parts) -> HandlerRejection {
        HandlerRejection {
            request: self.config.keep_request(parts),
            shared: self.clone(),
        }
    }

    /// The response to a rejected request. Refunds what outer layers have charged for it.
    pub(crate) fn reject(&self, decision: &Decision, parts: &Parts) -> Response<RejectionBody> {
        if let Some(outer) = parts.extensions.get::<Admission>() {
            outer.rollback();
        }
        self.config.rejection(decision, parts)
    }

    fn pending_headers(
        &self,
        admission: &Admission,
        decision_index: usize,
    ) -> Option<PendingHeaders> {
        let fields = self.config.headers;
        let refunds = self.config.refunds_handler_rejections;
        (refunds || !fields.is_none()).then(|| PendingHeaders {
            admission: admission.clone(),
            decision_index,
            fields,
        })
    }
}

impl PendingHeaders {
    /// Whether its decision and `other` have policies of the same name.
    fn shares_policy_with(&self, other: &Decision) -> bool {
        let shares_policy = |decision: &mut Decision| {
            let mut policies = decision.policies();
            policies.any(|policy| other.policy(policy.policy()).is_some())
        };
        self.admission
            .with_decision(self.decision_index, shares_policy)
            .unwrap_or(false)
    }

    /// Writes the fields of the decision as it is by now.
    pub(crate) fn write<B>(self, response: &mut Response<B>) {
        let fields = self.fields;
        let write =
            |decision: &mut Decision| write_headers(decision, fields, RetryDelay::NONE, response);
        self.admission
            .with_last_decision(self.decision_index, write);
    }
}

impl RequestGuards {
    /// The layer's response, if the handler rejected the request; otherwise the handler's own. Refunds the layer's charge, if it
    /// is set to.
    pub(crate) fn replace_rejection<B>(
        &mut self,
        response: Response<B>,
    ) -> Result<Response<RejectionBody>, Response<B>> {
        let mut response = response;
        let Some(HandlerRejection { shared, request }) = &self.handler_rejection else {
            return Err(response);
        };
        let rejected = response.extensions_mut().remove::<Rejected>();
        let by_inner_layer = response.extensions().get::<RejectedByHandler>().is_some();
        if shared.config.refunds_handler_rejections
            && (rejected.is_some() || by_inner_layer)
            && let Some(headers) = &self.headers
        {
            headers.admission.rollback_at(headers.decision_index);
        }
        let Some(rejected) = rejected else {
            return Err(response);
        };
        let mut replaced = shared
            .config
            .replace_rejection(&rejected, request, response);
        replaced.extensions_mut().insert(RejectedByHandler);
        // A policy appears once: in the rejection, where it is one of the same name.
        let headers = self
            .headers
            .take_if(|headers| headers.shares_policy_with(rejected.decision()));
        drop(headers);
        Ok(replaced)
    }
}
