use crate::{layer::RateLimitLayer, limiter::Limiter};

/// What an [`Admin`](super::Admin) is about: a [`Limiter`], or a [`RateLimitLayer`] and its limiter, of which it keeps a clone.
#[derive(Clone, Debug)]
pub struct AdminTarget(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Limiter(Limiter),
    Layer(RateLimitLayer),
}

impl AdminTarget {
    pub(super) fn limiter(&self) -> &Limiter {
        match &self.0 {
            Kind::Limiter(limiter) => limiter,
            Kind::Layer(layer) => layer.limiter(),
        }
    }

    /// The document of all settings in force.
    #[cfg(feature = "config")]
    pub(super) fn document(&self) -> crate::config::Document {
        match &self.0 {
            Kind::Limiter(limiter) => limiter.document(),
            Kind::Layer(layer) => layer.document(),
        }
    }
}

impl From<Limiter> for AdminTarget {
    fn from(limiter: Limiter) -> Self {
        Self(Kind::Limiter(limiter))
    }
}

impl From<&Limiter> for AdminTarget {
    fn from(limiter: &Limiter) -> Self {
        limiter.clone().into()
    }
}

impl From<RateLimitLayer> for AdminTarget {
    fn from(layer: RateLimitLayer) -> Self {
        Self(Kind::Layer(layer))
    }
}

impl From<&RateLimitLayer> for AdminTarget {
    fn from(layer: &RateLimitLayer) -> Self {
        layer.clone().into()
    }
}
