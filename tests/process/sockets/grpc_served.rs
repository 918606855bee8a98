//! A gRPC server of each kind, on each store, with a layer that records what requests are charged.

use tollgate::outcome::RequestEnd;

use crate::sockets::{
    grpc::{Client, Host},
    support::*,
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
    /// Under each host, on each store.
    pub(crate) async fn everywhere() -> Vec<Self> {
        Self::each(ChargedLayer::new).await
    }

    /// Under each host, on each store, with what this makes of the store.
    pub(crate) async fn each(charged_layer: impl Fn(&World) -> ChargedLayer) -> Vec<Self> {
        let mut everywhere = Vec::new();
        for (host, world) in Host::on_both_stores() {
            let charged_layer = charged_layer(&world);
            let address = host.serve(charged_layer.layer.clone()).await;
            everywhere.push(Self {
                client: Client::connect(address).await,
                name: format!("{host:?} {}", world.name()),
                charged_layer,
                address,
                _world: world,
            });
        }
        everywhere
    }

    /// Asserts that one request is in flight, and what is charged for it.
    pub(crate) async fn assert_in_flight(&self) {
        let charged = self.charged_layer.in_flight().await;
        assert_eq!(charged, IN_FLIGHT, "{}", self.name);
    }

    /// Asserts what the request was charged, and how it ended, once it has.
    pub(crate) async fn assert_settled(&self, charged: Charged, ended: Option<Ended>) {
        let settled = self.charged_layer.settled().await;
        assert_eq!(settled, (charged, ended), "{}", self.name);
    }

    /// Asserts what a call was charged whose response was sent in full, with this code.
    pub(crate) async fn assert_completed(&self, code: i32) {
        let charged = if code == 0 { SUCCESS } else { FAILURE };
        let ended = (RequestEnd::Completed, Some(200), Some(code));
        self.assert_settled(charged, Some(ended)).await;
    }
}
