//! The calls of a limiter by hand: what they take, and what they return.

use std::net::IpAddr;

use tollgate::{DecisionKind, Key, Keys, Limiter, Policy, Quota};

pub(crate) fn limiter(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = policies
        .into_iter()
        .fold(Limiter::builder(), |builder, policy| builder.policy(policy));
    builder.build().expect("a limiter")
}

#[tokio::test]
async fn a_request_is_admitted_until_its_quota_is_used_up_and_then_rejected() {
    let limiter = limiter([Policy::new("mail", Quota::requests(2).per_hour())]);
    let admission = limiter.admit("alice").await.expect("admitted");
    assert_eq!(admission.remaining("mail"), Some(1));
    let admission = limiter.admit("alice").cost(1).await.expect("admitted");
    assert_eq!(admission.remaining("mail"), Some(0));
    let rejected = limiter.admit("alice").await.expect_err("rejected");
    assert!(matches!(rejected.decision().kind(), DecisionKind::Rejected));
}

#[tokio::test]
async fn texts_numbers_and_addresses_are_keys() {
    async fn used_up(limiter: &Limiter, keys: impl Into<Keys>) -> bool {
        limiter.admit(keys).await.is_err()
    }

    let limiter = limiter([Policy::new("p", Quota::requests(1).per_hour())]);
    let address: IpAddr = "2001:db8::1".parse().expect("an address");
    for (key, same) in [
        (Keys::from("alice"), Key::new("alice")),
        (Keys::from("bob".to_owned()), Key::new("bob")),
        (Keys::from(&"carol".to_owned()), Key::new("carol")),
        (Keys::from(7), Key::new("7")),
        (Keys::from(u64::MAX), Key::new("18446744073709551615")),
        (Keys::from(address), Key::ip(address)),
    ] {
        assert!(!used_up(&limiter, key).await, "{same}");
        assert!(used_up(&limiter, same).await, "{same}");
    }
    assert_eq!(Key::from("x".to_owned()), Key::new("x"));
    assert_eq!(Key::from(&"x".to_owned()), Key::new("x"));
    assert_eq!(Key::from(42), Key::new("42"));
}
