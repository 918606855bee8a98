//! Client certificates, and what they are for.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};
use testkit::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject},
    },
};
use tollgate::{Policy, SlidingLog};
use tollgate_server::{
    proto::RateLimitDescriptor,
    rules::{Rule, Unit},
    serve::Server,
};
use tonic::{
    Code,
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity},
};

use crate::{
    client::{Client, cost, descriptor, request},
    program::Program,
    scene::{TEST_TIMEOUT, limit, limit_together, options, redis, rules, until},
};

/// A certificate authority, and the files of the server.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    folder: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let authority = Self {
            issuer: Issuer::new(params, key),
            pem,
            folder: testkit::folder(),
        };
        let (certificate, key) = authority.sign(&[dns("localhost")]);
        authority.write("cert.pem", &certificate);
        authority.write("key.pem", &key);
        authority.write("ca.pem", &authority.pem);
        authority
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The flags of a server with the files of this authority, and that has clients with its certificates alone.
    pub(crate) fn flags(&self) -> [String; 6] {
        let [certificate, key, ca] = FILES.map(|name| self.path(name));
        let [one, two, three] = ["--tls-cert", "--tls-key", "--tls-client-ca"].map(str::to_owned);
        [one, certificate, two, key, three, ca]
    }

    /// A certificate with these names, and its key.
    fn sign(&self, names: &[SanType]) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("names");
        params.subject_alt_names = names.to_vec();
        // Another one than the authority's: OpenSSL takes a certificate for self-signed otherwise.
        params.distinguished_name.push(DnType::CommonName, "signed");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// A connection that is encrypted, for a client without a certificate.
    pub(crate) async fn handshake(&self, connection: TcpStream) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.pem.as_bytes());
        roots
            .add(authority.expect("a certificate"))
            .expect("an authority");
        let provider = Arc::new(ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = config
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols.push(b"h2".to_vec());
        let name = "localhost".try_into().expect("a name");
        let connector = TlsConnector::from(Arc::new(config));
        let connected = connector.connect(name, connection).await;
        connected.expect("a handshake")
    }

    /// A client, with a certificate if it has names.
    fn client(&self, server: &Server, names: &[SanType]) -> Client {
        self.client_of(server.grpc().port(), names)
    }

    fn client_of(&self, port: u16, names: &[SanType]) -> Client {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.pem))
            .domain_name("localhost");
        if !names.is_empty() {
            let (certificate, key) = self.sign(names);
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let url = format!("https://localhost:{port}");
        let endpoint = Endpoint::from_shared(url)
            .expect("a URL")
            .timeout(TEST_TIMEOUT);
        Client::on(endpoint.tls_config(tls).expect("TLS").connect_lazy())
    }
}

/// The names of an authority's files: the server's certificate, its key, and the authority's certificate.
const FILES: [&str; 3] = ["cert.pem", "key.pem", "ca.pem"];

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("a name"))
}

fn credit(descriptor: RateLimitDescriptor, units: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..cost(descriptor, units)
    }
}

/// A limit whose strategy can't take credits.
fn log(key: &str) -> Rule {
    let mut rule = limit_together(key, "", 10, Unit::Hour);
    if let Some(counted) = &mut rule.limits[0].counted {
        counted.policy = Policy::new("log", Unit::Hour.quota(10))
            .strategy(SlidingLog)
            .by_hand();
    }
    rule
}

#[tokio::test(flavor = "multi_thread")]
async fn credits_are_taken_from_clients_with_a_listed_name_alone() {
    let (_clock, redis) = redis();
    let authority = Authority::new();
    let files = authority.flags();
    let mut flags: Vec<&str> = files.iter().map(String::as_str).collect();
    flags.extend(["--credit-name", "gateway.internal"]);
    flags.extend(["--credit-name", "spiffe://cluster/ns/a/sa/gateway"]);
    let rules = rules([limit("user", "", 10, Unit::Hour), log("log")]);
    let server = crate::scene::server(&redis, &rules, &flags).await;
    let uri = |name: &str| SanType::URI(name.try_into().expect("a URI"));
    let user = || descriptor([("user", "a")]);

    let listed = authority.client(&server, &[dns("other"), dns("gateway.internal")]);
    let by_uri = authority.client(&server, &[uri("spiffe://cluster/ns/a/sa/gateway")]);
    let unlisted = authority.client(
        &server,
        &[
            dns("gateway.internal.example"),
            uri("spiffe://cluster/ns/a/sa/other"),
        ],
    );
    assert!(unlisted.passes(cost(user(), 8)).await);
    let refused = unlisted
        .send(request([credit(user(), 5), user()]))
        .await
        .expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(unlisted.left(user()).await, 2);

    let credited = listed.ask([credit(user(), 5)]).await;
    assert_eq!(credited.statuses[0].limit_remaining, 7);
    // No more than the full limit.
    by_uri.ask([credit(user(), u64::MAX)]).await;
    assert_eq!(by_uri.left(user()).await, 10);
    let unsupported = listed
        .send(request([credit(descriptor([("log", "a")]), 1)]))
        .await;
    assert_eq!(
        unsupported.expect_err("unsupported").code(),
        Code::FailedPrecondition
    );

    // Without a certificate there is no connection.
    let stranger = authority.client(&server, &[]);
    assert!(stranger.send(request([user()])).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_no_credits_are_taken() {
    let (_clock, redis) = redis();
    let server =
        crate::scene::server(&redis, &rules([limit("user", "", 10, Unit::Hour)]), &[]).await;
    let refused = Client::of(&server)
        .send(request([credit(descriptor([("user", "a")]), 1)]))
        .await;
    assert_eq!(refused.expect_err("refused").code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again_when_they_change_and_on_sighup_and_bad_ones_change_nothing() {
    let (_clock, redis) = redis();
    for interval in ["0", "0.01"] {
        let (served, next) = (Authority::new(), Authority::new());
        let files = served.flags();
        let mut flags: Vec<&str> = files.iter().map(String::as_str).collect();
        flags.extend(["--config-interval", interval]);
        let program = Program::start(&redis, &flags);
        let replace = |name: &str, text: &str| {
            served.write(name, text);
            if interval == "0" {
                program.signal("HUP");
            }
        };
        let user = || cost(descriptor([("user", "a")]), 0);
        // On a connection of its own.
        let is_served = async |by: &Authority| {
            let client = by.client_of(program.grpc.port(), &[dns("client")]);
            client.send(request([user()])).await.is_ok()
        };
        let open = served.client_of(program.grpc.port(), &[dns("client")]);
        assert!(open.passes(user()).await);
        assert!(is_served(&served).await && !is_served(&next).await);

        replace("cert.pem", "no certificate");
        let kept = "certificates not reloaded, the previous ones stay in force";
        until("it is reported", || {
            program.log().contains(kept).then_some(())
        })
        .await;
        assert!(is_served(&served).await && !is_served(&next).await);

        // Between two of them the key is another certificate's.
        for name in FILES {
            let new = std::fs::read_to_string(next.path(name)).expect("a file");
            replace(name, &new);
        }
        let next_is_served = async {
            while !is_served(&next).await {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let served_in_time = tokio::time::timeout(TEST_TIMEOUT, next_is_served).await;
        served_in_time.expect("the new certificates");
        assert!(!is_served(&served).await);
        // Connections that are open stay.
        assert!(open.passes(user()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_valid_certificate_is_not_started() {
    let authority = Authority::new();
    let files = authority.flags();
    let flags: Vec<&str> = files.iter().map(String::as_str).collect();
    // It has the form of a certificate, and nothing else.
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let good_and_bad = authority.pem.clone() + bad;
    for (name, text, expected) in [
        ("key.pem", "no key", "key.pem: "),
        ("ca.pem", &good_and_bad, "ca.pem: "),
        (
            "cert.pem",
            "no certificate",
            "cert.pem: no certificate in PEM",
        ),
        ("ca.pem", "", "ca.pem: no certificate in PEM"),
    ] {
        let before = std::fs::read_to_string(authority.path(name)).expect("a file");
        authority.write(name, text);
        let started = Server::start(&options(&flags), &rules([])).await;
        let error = started.expect_err("a mistake").to_string();
        assert!(error.contains(expected), "{error}");
        authority.write(name, &before);
    }
}
