//! A gRPC server of each kind, on each store, with a layer that records what requests are charged.

use std::{net::SocketAddr, panic::Location};

use crate::sockets::{
    grpc::{Client, Host},
    support::{Charged, ChargedLayer, Ended, IN_FLIGHT, World},
};

/// A server that counts by [`ChargedLayer`], and a client of it.
pub(crate) struct Served {
    pub(crate) charged_layer: ChargedLayer,
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) name: String,
    _world: World,
}

impl Served {
    pub(crate) async fn new(world: World, host: Host, charged_layer: ChargedLayer) -> Self {
        let address = host.serve(charged_layer.layer.clone()).await;
        Self {
            client: Client::connect(address).await,
            name: format!("{host:?} {}", world.name()),
            charged_layer,
            address,
            _world: world,
        }
    }

    /// Under each host, on each store.
    pub(crate) async fn everywhere() -> Vec<Self> {
        let mut everywhere = Vec::new();
        for host in [Host::Tonic, Host::Axum] {
            for world in World::both() {
                let charged_layer = ChargedLayer::new(&world);
                everywhere.push(Self::new(world, host, charged_layer).await);
            }
        }
        everywhere
    }
    /// Asserts that one request is in flight, and what is charged for it.
    #[track_caller]
    pub(crate) fn assert_in_flight(&self) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            let charged = self.charged_layer.in_flight().await;
            assert_eq!(charged, IN_FLIGHT, "{}, at {caller}", self.name);
        }
    }

    /// Asserts what the request was charged, and how it ended, once it has.
    #[track_caller]
    pub(crate) fn assert_settled(
        &self,
        charged: Charged,
        ended: Option<Ended>,
    ) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            let settled = self.charged_layer.settled().await;
            assert_eq!(settled, (charged, ended), "{}, at {caller}", self.name);
        }
    }
}
