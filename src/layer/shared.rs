//! What a layer's clones and services share, and what happens to a request once it is decided.

use std::{ops::Deref, sync::Arc};

use http::{Extensions, HeaderMap, Response, header::CACHE_CONTROL, request::Parts};

use super::body::{InFlightRequest, ResponseProgress};
use crate::{
    headers::CDN_CACHE_CONTROL,
    limiter::{Admission, Decision, Limiter, PolicySet, Rejected},
    respond::{KeptRequest, LayerSettings, RejectionBody, RetryDelay, write_headers},
    sync::{CachePadded, Replaceable, ReplacedFlag, ShardedArc, replaceable_value},
};

/// The settings of a layer. There are several copies, of which each thread uses one, so that counting the references to it causes no
/// contention between threads.
#[derive(Debug)]
pub(crate) struct SharedSettings {
    settings: LayerSettings,
    replaced: ReplacedFlag,
}

/// An admitted request: what the layer keeps of it until there is a response.
#[derive(Debug, Default)]
pub(crate) struct AdmittedRequest {
    /// `None` if nothing is written on the response or refunded.
    pub(crate) decision: Option<LayerDecision>,
    /// Set if the request's end releases a permit or settles a charge.
    pub(crate) in_flight: Option<Box<InFlightRequest>>,
    /// For the response to a request that its handler rejects. `None` only if the layer is not enabled.
    pub(crate) rejection_context: Option<RejectionContext>,
}

/// What a layer needs to respond to a request that its handler rejects.
#[derive(Debug)]
pub(crate) struct RejectionContext {
    settings: Arc<SharedSettings>,
    request: KeptRequest,
}

/// On a response: an inner layer has replaced the response of a handler that rejected the request.
#[derive(Clone, Copy, Debug)]
struct RejectedByHandler;

/// The decision of this layer, whose header fields are written on the response, and whose charge is refunded if the handler
/// rejects the request.
#[derive(Debug)]
pub(crate) struct LayerDecision {
    admission: Admission,
    index: usize,
}

impl SharedSettings {
    /// Moves the decision of an admitted request to its extensions.
    pub(crate) fn admit(
        self: Arc<Self>,
        decision: &mut Option<Decision>,
        parts: &mut Parts,
    ) -> AdmittedRequest {
        let outer = parts.extensions.get::<Admission>().cloned();
        let is_inner = outer.is_some();
        let (admission, added) = match outer {
            None => Admission::first(decision),
            Some(outer) => {
                let added = decision.take().map(|decision| outer.join(decision));
                (outer, added.unwrap_or_default())
            }
        };
        let decision_index = added.index;
        let settles = added.depends_on_outcome;
        let in_flight = (settles || added.permits.is_some()).then(|| {
            let progress = settles.then(|| ResponseProgress::new(&parts.method));
            Box::new(InFlightRequest::new(
                admission.clone(),
                decision_index,
                added.permits,
                progress,
            ))
        });
        let decision = self.layer_decision(&admission, decision_index);
        if !is_inner {
            parts.extensions.insert(admission);
        }
        AdmittedRequest {
            decision,
            in_flight,
            rejection_context: Some(RejectionContext {
                request: self.settings.keep_request(parts),
                settings: self,
            }),
        }
    }

    /// The response to a rejected request. Refunds what outer layers have charged for it.
    pub(crate) fn reject(&self, decision: &Decision, parts: &Parts) -> Response<RejectionBody> {
        if let Some(outer) = parts.extensions.get::<Admission>() {
            outer.rollback();
        }
        self.settings.rejection(decision, parts)
    }

    fn layer_decision(
        &self,
        admission: &Admission,
        decision_index: usize,
    ) -> Option<LayerDecision> {
        let fields = self.settings.headers();
        let refunds = self.settings.refunds_handler_rejections();
        (refunds || !fields.is_none()).then(|| LayerDecision {
            admission: admission.clone(),
            index: decision_index,
        })
    }
}

impl LayerDecision {
    /// Whether its decision and `other` have policies of the same name.
    fn shares_policy_with(&self, other: &Decision) -> bool {
        let shares_policy = |decision: &Decision| {
            let mut policies = decision.policies();
            policies.any(|policy| other.policy(policy.policy()).is_some())
        };
        self.admission
            .with_decision(self.index, shares_policy)
            .unwrap_or(false)
    }
}

impl AdmittedRequest {
    /// Writes the fields of the layer's decision, as settled so far; none on a response that is for several callers.
    pub(crate) fn write_headers<B>(&mut self, response: &mut Response<B>) {
        let (Some(decision), Some(context)) = (self.decision.take(), &self.rejection_context)
        else {
            return;
        };
        // A cache serves such a response to other callers, and the fields are those of this caller.
        if is_shared(response.headers()) {
            return;
        }
        let fields = context.settings.headers();
        if fields.is_custom() {
            // A copy, since the closure is not called under the admission's lock.
            let copy = decision
                .admission
                .with_decision(decision.index, |decision| decision.clone());
            if let Some(copy) = copy {
                write_headers(&copy, fields, RetryDelay::NONE, response);
            }
            return;
        }
        let write =
            |decision: &Decision| write_headers(decision, fields, RetryDelay::NONE, response);
        decision.admission.with_last_decision(decision.index, write);
    }

    /// The layer's response, if the handler rejected the request; otherwise the handler's own, with the fixed fields if it is the
    /// `Status` of a rejection. Refunds the layer's charge, if it is set to.
    pub(crate) fn replace_handler_rejection<B>(
        &mut self,
        response: Response<B>,
    ) -> Result<Response<RejectionBody>, Response<B>> {
        let mut response = response;
        let Some(RejectionContext { settings, request }) = &self.rejection_context else {
            return Err(response);
        };
        let rejected = response.extensions_mut().remove::<Rejected>();
        let by_inner_layer = response.extensions().get::<RejectedByHandler>().is_some();
        let by_status = !by_inner_layer && is_status_of_rejection(response.extensions());
        if settings.refunds_handler_rejections()
            && (rejected.is_some() || by_inner_layer || by_status)
            && let Some(decision) = &self.decision
        {
            decision.admission.rollback_at(decision.index);
        }
        let Some(rejected) = rejected else {
            if by_status {
                response = settings.with_fixed_headers(response);
                response.extensions_mut().insert(RejectedByHandler);
            }
            return Err(response);
        };
        let mut replaced = settings.replace_handler_rejection(&rejected, request, response);
        replaced.extensions_mut().insert(RejectedByHandler);
        // If both have a policy of the same name, only the rejection's fields are written.
        let repeated = self
            .decision
            .take_if(|decision| decision.shares_policy_with(rejected.decision()));
        drop(repeated);
        Ok(replaced)
    }
}

/// Whether the response is a tonic `Status` that was made of a [`Rejected`].
fn is_status_of_rejection(extensions: &Extensions) -> bool {
    #[cfg(feature = "tonic")]
    {
        let status = extensions.get::<tonic::Status>();
        let source = status.and_then(std::error::Error::source);
        source.is_some_and(|source| source.is::<Rejected>())
    }
    #[cfg(not(feature = "tonic"))]
    {
        let _ = extensions;
        false
    }
}

/// Whether the service lets shared caches store the response, by `public` or `s-maxage` (RFC 9111, 5.2.2), or by any lifetime for CDNs
/// (RFC 9213).
fn is_shared(headers: &HeaderMap) -> bool {
    let has = |field, directives: &[&str]| {
        let lines = headers.get_all(field).into_iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        // A quoted value is no directive, but may have commas.
        let unquoted = lines.flat_map(|line| line.split('"').step_by(2));
        let mut names = unquoted
            .flat_map(|text| text.split(','))
            .filter_map(|directive| directive.split('=').next());
        names.any(|name| {
            let mut directives = directives.iter();
            directives.any(|directive| name.trim().eq_ignore_ascii_case(directive))
        })
    };
    has(&CACHE_CONTROL, &["public", "s-maxage"])
        || CDN_CACHE_CONTROL
            .iter()
            .any(|field| has(field, &["public", "s-maxage", "max-age"]))
}

impl Deref for SharedSettings {
    type Target = LayerSettings;

    fn deref(&self) -> &LayerSettings {
        &self.settings
    }
}

replaceable_value!(SharedSettings, replaced);

/// What the clones of a layer and its services share.
#[derive(Debug)]
pub(crate) struct LayerShared {
    limiter: Limiter,
    settings: Replaceable<SharedSettings>,
}

/// A reference to what a layer shares. There are several, each on cache lines of its own, of which each thread uses one, so that
/// counting the references to it causes no contention between threads.
#[derive(Debug)]
pub(crate) struct LayerHandle(CachePadded<Arc<LayerShared>>);

/// A service's reference to what its layer shares. The service that the layer makes has the handles of all threads; its
/// clones, which routers make for each request, have that of the thread that cloned them.
#[derive(Debug)]
pub(crate) enum LayerRef {
    All(Arc<ShardedArc<LayerHandle>>),
    Local(Arc<LayerHandle>),
}

impl LayerShared {
    /// Handles of what a layer shares.
    pub(crate) fn open(limiter: Limiter, settings: LayerSettings) -> ShardedArc<LayerHandle> {
        let shared = Arc::new(Self {
            limiter,
            settings: Replaceable::new(copies(&settings)),
        });
        ShardedArc::new(|| LayerHandle(CachePadded::new(shared.clone())))
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> LayerSettings {
        self.settings.local().settings.clone()
    }

    pub(crate) fn replace_settings(&self, settings: &LayerSettings) {
        self.settings.replace(copies(settings));
    }
}

fn copies(settings: &LayerSettings) -> ShardedArc<SharedSettings> {
    ShardedArc::new(|| SharedSettings {
        settings: settings.clone(),
        replaced: ReplacedFlag::default(),
    })
}

impl LayerHandle {
    #[inline]
    pub(crate) fn shared(&self) -> &LayerShared {
        &self.0
    }
}

impl LayerRef {
    /// The settings in force.
    #[inline]
    pub(crate) fn settings(&self) -> Arc<SharedSettings> {
        self.handle().shared().settings.local()
    }

    /// The policies in force.
    #[inline]
    pub(crate) fn policy_set(&self) -> Arc<PolicySet> {
        self.handle().shared().limiter.policy_set()
    }

    #[inline]
    fn handle(&self) -> &Arc<LayerHandle> {
        match self {
            Self::All(handles) => handles.local(),
            Self::Local(handle) => handle,
        }
    }
}

impl Clone for LayerRef {
    fn clone(&self) -> Self {
        Self::Local(self.handle().clone())
    }
}
