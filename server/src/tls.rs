//! The certificate of gRPC, and the authorities of its clients' certificates. They are read again when their files change.

use std::{
    fmt::{self, Display},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::watch;
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tracing::{error, info};

use crate::{document, options::Options};

/// The protocol that is negotiated: gRPC has no other.
const ALPN: &[u8] = b"h2";

/// The files with certificates, and the configuration that was made of them.
pub struct Certificates {
    files: Files,
    /// What the files had in them when they were last read, or why they could not be read.
    last: Result<Contents, String>,
    config: watch::Sender<Arc<ServerConfig>>,
}

#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Certificates {
    /// Reads the files that the options name; `None` if gRPC is not encrypted.
    ///
    /// # Errors
    ///
    /// If a file can't be read or is invalid, or the key is another certificate's.
    pub(crate) fn read(options: &Options) -> Result<Option<Self>, String> {
        let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) else {
            return Ok(None);
        };
        let files = Files {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: options.tls_client_ca.clone(),
        };
        let contents = files.read()?;
        let config = files.config(&contents)?;
        Ok(Some(Self {
            files,
            last: Ok(contents),
            config: watch::Sender::new(Arc::new(config)),
        }))
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.config.subscribe()
    }

    /// Reads the files again. If they have changed, or `is_forced`, new connections use what is in them now; connections that are open
    /// stay as they are. Files with mistakes are reported, and change nothing.
    pub(crate) async fn reload(&mut self, is_forced: bool) {
        let files = self.files.clone();
        let now = tokio::task::spawn_blocking(move || files.read()).await;
        let now = now.unwrap_or_else(|error| Err(error.to_string()));
        if !is_forced && now == self.last {
            return;
        }
        self.last = now;
        let contents = self.last.as_ref().map_err(Clone::clone);
        match contents.and_then(|contents| self.files.config(contents)) {
            Ok(config) => {
                self.config.send_replace(Arc::new(config));
                info!("certificates reloaded");
            }
            Err(error) => {
                error!(%error, "certificates not reloaded, the previous ones stay in force");
            }
        }
    }
}

impl Files {
    fn read(&self) -> Result<Contents, String> {
        let read =
            |path: &PathBuf| document::read_whole(path).map_err(|error| in_file(path, error));
        Ok(Contents {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            client_ca: self.client_ca.as_ref().map(read).transpose()?,
        })
    }

    fn config(&self, contents: &Contents) -> Result<ServerConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let builder = match self.client_ca.as_deref().zip(contents.client_ca.as_ref()) {
            None => builder.with_no_client_auth(),
            Some((path, pem)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path, pem)? {
                    roots
                        .add(certificate)
                        .map_err(|error| in_file(path, error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                let verifier = verifier.map_err(|error| in_file(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key);
        let key = key.map_err(|error| in_file(&self.key, error))?;
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| in_file(&self.certificate, error))?;
        config.alpn_protocols.push(ALPN.to_vec());
        Ok(config)
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| in_file(path, error))?;
    if certificates.is_empty() {
        return Err(in_file(path, "no certificate in PEM"));
    }
    Ok(certificates)
}

fn in_file(path: &Path, error: impl Display) -> String {
    format!("{}: {error}", path.display())
}

/// Without the key.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
