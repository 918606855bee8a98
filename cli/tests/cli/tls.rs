//! An admin API behind TLS, whose certificate no authority of the system has signed.

use std::{net::SocketAddr, sync::Arc};

use axum::serve::Listener;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use testkit::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivatePkcs8KeyDer},
    server::TlsStream,
};
use tollgate::{Limiter, Policy, Quota, admin::Admin};

use crate::{
    program::{Run, command, run, write},
    served::TOKEN,
};

/// An admin API behind TLS.
struct Encrypted {
    url: String,
    /// The file with its certificate, which signs itself.
    certificate: String,
    _runtime: Runtime,
    _folder: TempDir,
}

/// Accepts connections, and those alone that agree on TLS.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, peer) = self.listener.accept().await.expect("a connection");
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl Encrypted {
    fn start() -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let folder = testkit::folder();
        let certificate = write(folder.path(), "own.pem", &cert.pem());
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())
            .expect("a configuration");
        let policy = Policy::new("api", Quota::requests(3).per_day());
        let limiter = Limiter::builder().policy(policy).build();
        let admin = Admin::new(limiter.expect("a limiter")).token("ops", TOKEN);
        let admin = admin.router().expect("a router");
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = TlsListener {
            listener: listener.expect("a port"),
            acceptor: TlsAcceptor::from(Arc::new(config)),
        };
        let port = listener.local_addr().expect("an address").port();
        runtime.spawn(async { axum::serve(listener, admin).await });
        Self {
            url: format!("https://localhost:{port}"),
            certificate,
            _runtime: runtime,
            _folder: folder,
        }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let mut command = command(&["policies", "--admin", &self.url]);
        command.args(arguments).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        run(command)
    }
}

#[test]
fn a_certificate_that_signs_itself_is_trusted_if_it_is_named() {
    let service = Encrypted::start();
    let run = service.run(&["--cacert", &service.certificate]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    run.assert_stdout("api     live  3/day");
}

#[test]
fn no_other_certificate_is_trusted() {
    let (service, other) = (Encrypted::start(), Encrypted::start());
    for arguments in [&[][..], &["--cacert", &other.certificate]] {
        let run = service.run(arguments);
        assert_eq!((run.code, &*run.stdout), (Some(3), ""), "{}", run.stderr);
        run.assert_stderr("certificate");
        assert!(!run.stderr.contains(TOKEN), "{}", run.stderr);
    }
}

#[test]
fn a_file_without_a_certificate_is_a_mistake() {
    let service = Encrypted::start();
    let folder = testkit::folder();
    let empty = write(folder.path(), "empty.pem", "no certificate\n");
    let run = service.run(&["--cacert", &empty]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    run.assert_stderr("found no certificate");
    let missing = folder.path().join("missing.pem");
    let run = service.run(&["--cacert", missing.to_str().expect("text")]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    let config = ["policies", "--config", "limits.toml", "--cacert", &empty];
    assert_eq!(crate::program::tollgate(&config).code, Some(2));
}
