//! Encrypted connections.

use crate::deployments::support::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use testkit::{folder, free_port};
use tollgate::redis::RedisStoreBuilder;

/// An authority, and what it has signed: certificates and keys in PEM.
struct Signed {
    authority: String,
    server: [String; 2],
    client: [String; 2],
}

fn signed() -> Signed {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "an authority");
    let own = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, own).expect("an authority");
    let sign = |name: &str, usage| {
        let mut params =
            CertificateParams::new(["localhost".into(), "127.0.0.1".into()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let own = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&own, &authority).expect("a certificate");
        [certificate.pem(), own.serialize_pem()]
    };
    Signed {
        server: sign("server", ExtendedKeyUsagePurpose::ServerAuth),
        client: sign("client", ExtendedKeyUsagePurpose::ClientAuth),
        authority: authority.pem(),
    }
}

/// The lines of a configuration with which a server shows its certificate, and requires one of clients.
fn lines(signed: &Signed, folder: &Path) -> Vec<(&'static str, String)> {
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    vec![
        ("tls-cert-file", file("server.pem", &signed.server[0])),
        ("tls-key-file", file("server.key", &signed.server[1])),
        ("tls-ca-cert-file", file("authority.pem", &signed.authority)),
        ("tls-auth-clients", "yes".into()),
    ]
}

/// A server that speaks TLS on a port of its own, and that port.
fn server(signed: &Signed, folder: &Path) -> (Server, u16) {
    let port = free_port();
    let builder = lines(signed, folder)
        .into_iter()
        .fold(Server::builder(), |builder, (name, value)| {
            builder.arg(name, &value)
        });
    (builder.arg("tls-port", &port.to_string()).start(), port)
}

fn at(url: String) -> RedisStoreBuilder {
    RedisStore::builder().url(url)
}

#[tokio::test]
async fn a_client_with_a_certificate_is_accepted_over_an_encrypted_connection() {
    let (signed, folder) = (signed(), folder());
    let (server, port) = server(&signed, folder.path());
    for host in ["127.0.0.1", "localhost"] {
        let [certificate, own] = &signed.client;
        let store = at(format!("rediss://{host}:{port}"))
            .root_certificates(signed.authority.as_str())
            .client_certificate(certificate.as_str(), own.as_str());
        counts(&limiter(patient(store), 3)).await;
        server.flush();
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_or_with_another_authority_is_not_connected() {
    let (signed, other, folder) = (signed(), self::signed(), folder());
    let (_server, port) = server(&signed, folder.path());
    let url = || at(format!("rediss://127.0.0.1:{port}"));
    let [certificate, own] = &signed.client;
    let stores = [
        url().root_certificates(signed.authority.as_str()),
        url()
            .root_certificates(other.authority.as_str())
            .client_certificate(certificate.as_str(), own.as_str()),
        url().client_certificate(certificate.as_str(), own.as_str()),
    ];
    for store in stores {
        let decision = limiter(patient(store), 3).check(key()).await;
        assert_eq!(store_error(&decision).code(), "connection");
    }
}

#[tokio::test]
async fn a_cluster_is_encrypted_throughout() {
    let (signed, folder) = (signed(), folder());
    let lines = lines(&signed, folder.path());
    let ports = std::sync::Mutex::new(Vec::new());
    let cluster = Cluster::start_with(3, 0, |node| {
        let port = free_port();
        ports.lock().expect("ports").push(port);
        let node = lines
            .iter()
            .fold(node, |node, (name, value)| node.arg(name, value));
        node.arg("tls-port", &port.to_string())
            .arg("cluster-announce-port", &port.to_string())
    });
    let urls = ports.into_inner().expect("ports").into_iter();
    let urls = urls
        .take(1)
        .map(|port| format!("rediss://127.0.0.1:{port}"));
    let [certificate, own] = &signed.client;
    let store = RedisStore::builder()
        .cluster(urls)
        .root_certificates(signed.authority.as_str())
        .client_certificate(certificate.as_str(), own.as_str());
    let limiter = limiter(patient(store), 3);
    for number in 0..60 {
        assert!(admitted_by_store(
            &limiter.check(Key::new(format!("{number}"))).await
        ));
    }
    assert!(cluster.nodes().iter().all(|node| !node.keys().is_empty()));
}

#[test]
fn a_key_is_not_shown_and_one_that_is_no_pem_is_a_mistake() {
    let [certificate, own] = signed().client;
    let at = || at("rediss://user:hunter2@127.0.0.1:6379".to_owned());
    let garbled = at().client_certificate("no PEM", own.as_str()).build();
    assert_contains(garbled.expect_err("a mistake"), ["PEM"]);
    let store = at().client_certificate(certificate.as_str(), own.as_str());
    let shown = format!("{store:?}");
    assert!(!shown.contains(&own[40..80]) && !shown.contains("hunter2"));
}
