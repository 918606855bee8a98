//! A gRPC client that is on a deny list learns that it may not, and nothing else.

use std::error::Error;

use tollgate::access::AccessList;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::sockets::{
    grpc::Host,
    grpc_rejected::{call_all, client_of},
    support::*,
};

fn assert_denied(status: &Status) {
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "Forbidden.");
    // No retry delay, and no details of limits.
    assert!(status.get_error_details().retry_info().is_none());
    assert!(status.get_error_details().quota_failure().is_none());
    let fields = ["grpc-retry-pushback-ms", "retry-after", "ratelimit"];
    for field in fields.into_iter().chain(["ratelimit-policy"]) {
        assert!(!status.metadata().contains_key(field), "{field}");
    }
}

fn limiter_that_denies(world: &World, list: impl Into<AccessList>) -> Limiter {
    let builder = world.builder().policy(hourly("calls", 9)).deny(list);
    builder.built()
}

#[tokio::test]
async fn a_denied_key_gets_permission_denied_from_every_method_until_it_is_unlisted() {
    for (host, world) in Host::on_both_stores() {
        let list = KeyList::new("calls", [Key::global()]);
        let limiter = limiter_that_denies(&world, list.clone());
        let mut client = client_of(host, &limiter).await;
        for response in call_all(&mut client).await {
            assert_denied(&response.expect_err("denied"));
        }
        list.replace([]);
        assert_eq!(used(&limiter, "calls").await, 0);
        for response in call_all(&mut client).await {
            response.expect("admitted");
        }
        assert_eq!(used(&limiter, "calls").await, 4);
    }
}

#[tokio::test]
async fn deny_lists_match_the_address_of_tonics_connection() {
    let world = World::memory();
    for (entry, denied) in [("127.0.0.0/8", true), ("192.0.2.0/24", false)] {
        let list = AddressList::new([entry]).expect("a list");
        let limiter = limiter_that_denies(&world, list);
        let mut client = client_of(Host::Tonic, &limiter).await;
        match client.unary("word").await {
            Err(status) if denied => assert_denied(&status),
            response => assert!(!denied && response.is_ok(), "{entry}: {response:?}"),
        }
    }
}

#[tokio::test]
async fn a_handlers_check_of_a_denied_key_becomes_the_same_status() {
    let list = KeyList::new("calls", [Key::global()]);
    let limiter = limiter_that_denies(&World::memory(), list);
    let rejected = limiter.check(Key::global()).await.into_result();
    let status = Status::from(rejected.expect_err("denied"));
    assert_denied(&status);
    let source = status.source().expect("a source");
    assert!(source.downcast_ref::<Rejected>().is_some());
}
