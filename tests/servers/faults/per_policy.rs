//! Each policy has its own action: a login stays closed while a read stays open. Calls other than a request's check report that the
//! store is down, whatever the action is.

use crate::faults::support::*;
use tollgate::limiter::SettleError;

fn named(name: &'static str, response: impl Into<OnStoreError>) -> Policy {
    Policy::new(name, quota(4)).on_store_error(response)
}

fn of(response: OnStoreError, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let limiter = Limiter::builder().store(nowhere());
    stores::limiter(limiter.on_store_error(response), policies)
}

const HALF: LocalFallback = LocalFallback::shared_by(2);

#[tokio::test]
async fn a_login_stays_closed_while_a_read_stays_open() {
    let policies = [
        Policy::new("read", quota(4)).missing_key(MissingKey::Skip),
        named("login", OnStoreError::Reject).missing_key(MissingKey::Skip),
    ];
    let limiter = of(OnStoreError::Admit, policies);
    let (key, read, login) = (KEY, "read", "login");
    assert!(limiter.check([(read, key)]).await.is_admitted());
    for decision in [
        limiter.check([(login, key)]).await,
        limiter.check([(read, key), (login, key)]).await,
    ] {
        let code = store_error(&decision).code();
        assert!(["connection", "circuit_open"].contains(&code), "{code}");
    }
    assert!(limiter.check([(read, key)]).await.is_admitted());
}

#[tokio::test]
async fn one_policy_that_rejects_rejects_for_all_and_nothing_is_charged_in_process() {
    let policies = [named("shared", HALF), named("closed", OnStoreError::Reject)];
    let limiter = of(OnStoreError::Admit, policies);
    for _ in 0..3 {
        store_error(&limiter.check(KEY).await);
    }
    // Alone it still has all of its share.
    let seen = limiter.check([("shared", KEY)]).cost(0).await;
    assert_eq!(seen.left("shared"), 2);
}

/// Those that admit are not evaluated, nor shadows.
#[tokio::test]
async fn policies_that_fall_back_are_all_charged_or_none() {
    let policies = [
        named("open", OnStoreError::Admit),
        named("shadow", OnStoreError::Reject).shadow(),
        named("two", HALF),
        Policy::new("one", quota(1)).on_store_error(LocalFallback::shared_by(9)),
    ];
    let limiter = of(OnStoreError::Reject, policies);
    let admitted = limiter.check(KEY).await;
    assert!(admitted.is_admitted() && admitted.shadows().len() == 0);
    let names: Vec<_> = admitted.policies().map(|policy| policy.policy()).collect();
    assert_eq!(names, ["two", "one"]);
    for _ in 0..3 {
        let rejected = limiter.check(KEY).await;
        assert!(matches!(rejected.kind(), DecisionKind::Rejected));
        assert_eq!(rejected.source(), DecisionSource::Fallback);
        assert!(rejected.policy("one").expect("a policy").rejected());
        assert_eq!(rejected.left("two"), 1);
    }
}

/// Others are among those of `memory http::entry_points`.
#[tokio::test]
async fn calls_that_are_no_checks_report_that_the_store_is_down_whatever_the_action_is() {
    for response in [OnStoreError::Admit, OnStoreError::Reject, HALF.into()] {
        let server = Server::start();
        let minute = Quota::requests(5).per_minute();
        let policies = [
            policy(100),
            Policy::new("list", minute).strategy(ListWindow),
            Policy::new("ban", minute).strategy(Ban::for_duration(secs(60))),
        ];
        let builder = Limiter::builder().store(store(&server));
        let limiter = stores::limiter(builder.on_store_error(response), policies);
        let admission = limiter.admit(KEY).cost(3).await.expect("admitted");
        server.kill();
        let [p, list, ban] = ["p", "list", "ban"].map(|name| limiter.policy(name).expect(name));
        let charges = admission.policy("p").expect("a policy");
        let store_call = |result: Result<(), StoreError>| result.map_err(CallError::Store);
        for (call, result) in [
            ("unblock", limiter.unblock(KEY).await.map(drop)),
            ("a policy's unblock", ban.unblock(KEY).await.map(drop)),
            ("a policy's peek", p.peek(KEY).await.map(drop)),
            ("callers", list.callers(KEY).await.map(drop)),
            ("charge", store_call(charges.charge(1).await)),
            ("refund", store_call(charges.refund(1).await.map(drop))),
            ("settle", store_call(charges.settle(9).await)),
        ] {
            let Err(CallError::Store(error)) = result else {
                panic!("{call} with {response:?}: {result:?}");
            };
            assert!(!error.is_misconfiguration(), "{call}: {error}");
        }
        let settled = admission.settle_each([("p", 20), ("list", 2)]).await;
        let Err(SettleError::Store { settled, .. }) = settled else {
            panic!("{settled:?}");
        };
        assert!(settled.is_empty(), "{settled:?}");
    }
}
