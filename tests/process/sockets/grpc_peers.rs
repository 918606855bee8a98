//! Clients are distinguished by the peer of their connection, with TLS and without.

use std::net::Ipv4Addr;

use futures_util::stream;

use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, KeyPair};
use tokio::net::TcpSocket;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};
use tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig, Uri,
};

use crate::sockets::{
    grpc::{Calls, Client, is_rejection, listen, serve_tonic},
    support::*,
};

/// One call an hour by each client address, which is the default key.
fn layer() -> RateLimitLayer {
    let policy = Policy::new("clients", quota("1/h"));
    RateLimitLayer::builder().policy(policy).built()
}

/// A connection from `local`.
pub(crate) async fn from(local: Ipv4Addr, server: SocketAddr, endpoint: Endpoint) -> Channel {
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
        first.unary("word").await.expect("admitted");
        let mut second = Client::of(from(local, server, endpoint()).await);
        for client in [&mut first, &mut second] {
            let status = client.unary("word").await.expect_err("rejected");
            assert!(is_rejection(&status), "{status}");
        }
    }
}

/// A certificate of `localhost`, and how a client trusts it.
fn certificate() -> (CertifiedKey<KeyPair>, impl Fn() -> Endpoint) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let pem = own.cert.pem();
    let endpoint = move || {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&pem));
        let endpoint = Endpoint::from_static("https://localhost").tls_config(tls);
        endpoint.expect("a configuration")
    };
    (own, endpoint)
}

#[tokio::test]
async fn tonics_connections_under_tonics_tls_have_peers() {
    let (own, endpoint) = certificate();
    let identity = Identity::from_pem(own.cert.pem(), own.signing_key.serialize_pem());
    let tls = ServerTlsConfig::new().identity(identity);
    let server = Server::builder().tls_config(tls).expect("a configuration");
    let server = serve_tonic(server, layer()).await;
    each_has_its_own_quota(server, endpoint).await;
}

/// If a server handles TLS itself, tonic has less information.
#[tokio::test]
async fn tonics_connections_under_custom_tls_have_peers() {
    let (own, endpoint) = certificate();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![own.cert.der().clone()], key);
    let mut config = config.expect("a configuration");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(config));

    let (listener, server) = listen().await;
    let connections = stream::unfold(listener, move |listener| {
        let tls = tls.clone();
        async move {
            let (socket, _) = listener.accept().await.expect("a client");
            Some((tls.accept(socket).await, listener))
        }
    });
    let service = Server::builder().layer(layer()).add_service(Calls);
    tokio::spawn(service.serve_with_incoming(connections));
    each_has_its_own_quota(server, endpoint).await;
}
