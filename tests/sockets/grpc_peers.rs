//! Clients are told apart by the peer of their connection, with TLS and without.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hyper_util::rt::TokioIo;
use rcgen::CertifiedKey;
use tokio::net::TcpSocket;
use tollgate::{Policy, Quota, RateLimitLayer};
use tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig, Uri,
};
use tower::service_fn;

use crate::grpc::{Client, is_refusal, serve_tonic};

/// One call an hour by each client address, which is the default key.
fn layer() -> RateLimitLayer {
    let policy = Policy::new("clients", Quota::requests(1).per_hour());
    RateLimitLayer::builder()
        .policy(policy)
        .build()
        .expect("a layer")
}

/// A connection from `local`.
async fn from(local: Ipv4Addr, server: SocketAddr, endpoint: Endpoint) -> Channel {
    let connect = service_fn(move |_: Uri| async move {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(IpAddr::V4(local), 0))?;
        socket.connect(server).await.map(TokioIo::new)
    });
    endpoint
        .connect_with_connector(connect)
        .await
        .expect("a server")
}

async fn each_has_its_own_quota(server: SocketAddr, endpoint: impl Fn() -> Endpoint) {
    for last in [2, 3] {
        let local = Ipv4Addr::new(127, 0, 0, last);
        // Each connection has a port of its own, which doesn't matter.
        let mut first = Client::of(from(local, server, endpoint()).await);
        first.unary("word").await.expect("let in");
        let mut second = Client::of(from(local, server, endpoint()).await);
        for client in [&mut first, &mut second] {
            let status = client.unary("word").await.expect_err("refused");
            assert!(is_refusal(&status), "{status}");
        }
    }
}

#[tokio::test]
async fn tonics_connections_have_peers() {
    let server = serve_tonic(Server::builder(), layer()).await;
    each_has_its_own_quota(server, || {
        Endpoint::from_shared(format!("http://{server}")).expect("one")
    })
    .await;
}

#[cfg(feature = "tonic-tls")]
#[tokio::test]
async fn tonics_connections_under_tls_have_peers() {
    let names = ["localhost".to_owned()];
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(names).expect("a certificate");
    let identity = Identity::from_pem(cert.pem(), signing_key.serialize_pem());
    let tls = ServerTlsConfig::new().identity(identity);
    let server = Server::builder().tls_config(tls).expect("a configuration");
    let server = serve_tonic(server, layer()).await;
    let endpoint = || {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(cert.pem()));
        let endpoint = Endpoint::from_static("https://localhost").tls_config(tls);
        endpoint.expect("a configuration")
    };
    each_has_its_own_quota(server, endpoint).await;
}
