//! Charges past what is left that can be refunded.

use tollgate::{Decision, Limiter, limiter::Keys};

/// Charges `units` under every policy by the admission of a request that costs nothing; returns its decision.
pub async fn charge(limiter: &Limiter, keys: impl Into<Keys>, units: u64) -> Decision {
    let admission = limiter.admit(keys).cost(0).await.expect("it is free");
    for policy in limiter.policies() {
        let charges = admission.policy(policy.name()).expect("a policy");
        charges.charge(units).await.expect("a response");
    }
    admission.decisions().remove(0)
}
