//! A client of HTTP without TLS.

/// A client. The command line's crate brings TLS into reqwest without a cryptographic library, and a client needs one there, also
/// for plain HTTP.
pub fn client() -> reqwest::Client {
    // An error says that it is installed.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}
