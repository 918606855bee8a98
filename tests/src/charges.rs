//! Charges past what is left, and charges of a request under every policy that applied.

use tollgate::{
    Admission, Limiter, StoreError,
    limiter::{Keys, PolicyAdmission, SettleError},
};

/// Charges `units` under every policy by the admission of a request that costs nothing; returns the admission.
pub async fn charge(limiter: &Limiter, keys: impl Into<Keys>, units: u64) -> Admission {
    let admission = limiter.admit(keys).cost(0).await.expect("it is free");
    for policy in limiter.policies() {
        let charges = admission.policy(policy.name()).expect("a policy");
        charges.charge(units).await.expect("a response");
    }
    admission
}

/// The request's charges under each of its policies: also those in the shadow.
pub fn every(admission: &Admission) -> Vec<PolicyAdmission> {
    let mut names: Vec<String> = Vec::new();
    for decision in admission.decisions() {
        for policy in decision.policies().chain(decision.shadows()) {
            if !names.iter().any(|name| name == policy.policy()) {
                names.push(policy.policy().to_owned());
            }
        }
    }
    let of = |name| admission.policy(name).expect("it applied");
    names.into_iter().map(of).collect()
}

pub async fn charge_every(admission: &Admission, units: u64) -> Result<(), StoreError> {
    for policy in every(admission) {
        policy.charge(units).await?;
    }
    Ok(())
}

pub async fn refund_every(admission: &Admission, units: u64) -> Result<(), StoreError> {
    for policy in every(admission) {
        policy.refund(units).await?;
    }
    Ok(())
}

/// All of them at once.
pub async fn settle_every(admission: &Admission, true_cost: u64) -> Result<(), StoreError> {
    let policies = every(admission);
    let true_costs = policies.iter().map(|policy| (policy.policy(), true_cost));
    match admission.settle_each(true_costs).await {
        Ok(()) => Ok(()),
        Err(SettleError::Store { error, .. }) => Err(error),
        Err(unknown) => panic!("{unknown}"),
    }
}
