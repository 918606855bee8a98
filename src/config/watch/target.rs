use crate::{
    RateLimitLayer,
    changes::Changes,
    config::{Document, LoadError, Registry},
    limiter::Limiter,
    observe::Event,
};

/// What a [`Watch`](super::Watch) reconfigures: a [`Limiter`] or a [`RateLimitLayer`], of which it keeps a clone.
#[derive(Clone, Debug)]
pub struct WatchTarget(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Limiter(Limiter),
    Layer(RateLimitLayer),
}

impl WatchTarget {
    /// A setting of a layer to which its document and code have given different values.
    pub(super) fn set_twice(&self) -> Option<&'static str> {
        let Kind::Layer(layer) = &self.0 else {
            return None;
        };
        let settings = layer.settings();
        let document = settings.of_document.as_ref()?;
        document.conflicts(&settings.set_by_code()).next()
    }

    /// Puts a document in force.
    pub(super) fn reconfigure(
        &self,
        document: &Document,
        registry: &Registry,
    ) -> Result<Changes, LoadError> {
        match &self.0 {
            Kind::Limiter(limiter) => document.reconfigure(limiter, registry),
            Kind::Layer(layer) => document.reconfigure_layer(layer, registry),
        }
    }

    /// Reports that the document with this hash is in force, or that one could not be loaded.
    pub(super) fn report_load(&self, hash: Option<&str>) {
        let limiter = match &self.0 {
            Kind::Limiter(limiter) => limiter,
            Kind::Layer(layer) => layer.limiter(),
        };
        limiter.report_event(&Event::ConfigLoaded {
            applied: hash.is_some(),
            hash,
        });
    }
}

impl From<Limiter> for WatchTarget {
    fn from(limiter: Limiter) -> Self {
        Self(Kind::Limiter(limiter))
    }
}

impl From<&Limiter> for WatchTarget {
    fn from(limiter: &Limiter) -> Self {
        limiter.clone().into()
    }
}

impl From<RateLimitLayer> for WatchTarget {
    fn from(layer: RateLimitLayer) -> Self {
        Self(Kind::Layer(layer))
    }
}

impl From<&RateLimitLayer> for WatchTarget {
    fn from(layer: &RateLimitLayer) -> Self {
        layer.clone().into()
    }
}
