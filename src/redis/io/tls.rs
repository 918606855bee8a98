//! Certificates of TLS connections.

use redis::ConnectionInfo;

use crate::error::ConfigError;

/// Root and client certificates; the system's roots and no client certificate, unless set.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    #[cfg(feature = "redis-tls")]
    pub(crate) root: Option<Vec<u8>>,
    #[cfg(feature = "redis-tls")]
    pub(crate) client: Option<redis::ClientTlsConfig>,
}

#[cfg(not(feature = "redis-tls"))]
impl Tls {
    #[expect(clippy::unused_self, reason = "with the feature there is something")]
    pub(crate) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
        match info.addr() {
            redis::ConnectionAddr::TcpTls { .. } => Err(not_built()),
            _ => Ok(info),
        }
    }
}

/// The error for a `rediss://` address in a build without TLS.
pub(crate) fn not_built() -> ConfigError {
    ConfigError::new(
        "a rediss:// address in a build without TLS",
        "the feature `redis-tls` of tollgate, or a redis:// address",
    )
}

#[cfg(feature = "redis-tls")]
impl Tls {
    /// Adds the certificates to a `rediss://` address.
    pub(crate) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
        let given = self.root.is_some() || self.client.is_some();
        if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            return if given {
                Err(ConfigError::new(
                    "certificates for an unencrypted connection",
                    "a rediss:// address",
                ))
            } else {
                Ok(info)
            };
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may have installed it first.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        if !given {
            return Ok(info);
        }
        let own = self.client.as_ref().map(|client| &client.client_cert);
        if own
            .into_iter()
            .chain(&self.root)
            .any(|pem| !holds_certificate(pem))
        {
            return Err(ConfigError::new(
                "PEM text without a certificate",
                "certificates in PEM",
            ));
        }
        let certificates = redis::TlsCertificates {
            client_tls: self.client.clone(),
            root_cert: self.root.clone(),
        };
        let client = redis::Client::build_with_tls(info, certificates);
        let client = client.map_err(|error| {
            let value = format!("certificates that can't be used ({error})");
            ConfigError::new(value, "certificates and a key in PEM")
        })?;
        Ok(client.get_connection_info().clone())
    }
}

#[cfg(feature = "redis-tls")]
fn holds_certificate(pem: &[u8]) -> bool {
    String::from_utf8_lossy(pem).contains("-----BEGIN CERTIFICATE-----")
}
