//! A client with addresses without number fills neither the quota nor the server.

use std::net::Ipv6Addr;

use tollgate_tests::prelude::*;

use crate::store::support::*;

/// The addresses of one customer of a provider: as many /64s as there are in a /48.
fn subscriber(network: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, network, 0, 0, 0, 7))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_policy_by_a_wider_prefix_limits_all_of_its_addresses_together() {
    let server = Server::start();
    // Five each, and a hundred for all of a /48.
    let policies = [("client", "5/day"), ("network", "100/day")];
    let policies = policies.map(|(name, quota)| StrategyKind::Gcra.policy(name, quota));
    let limiter = limiter(store(&server), policies);
    let ask = async |address: IpAddr| {
        let network = ("network", Key::network(address, 24, 48));
        admitted_by_store(&limiter.check([("client", Key::ip(address)), network]).await)
    };
    let mut admitted = 0;
    for network in 0..2_000 {
        admitted += u64::from(ask(subscriber(network)).await);
    }
    assert_eq!(admitted, 100);
    // A rejected request leaves nothing behind: a key for each admitted address, one for the network.
    assert_eq!(server.keys().len(), 101);
    // The neighbours are none of it.
    let neighbour = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 7);
    assert!(ask(neighbour.into()).await);
}
