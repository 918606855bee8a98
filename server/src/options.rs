//! The settings of the server: flags, or variables of the environment.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{
    Args, ValueEnum,
    builder::{BoolishValueParser, PossibleValue},
};
use tracing_subscriber::filter::{ParseError, Targets};

use crate::{document, engine::OnError};

/// How the server listens, counts and answers.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Documents with rules: files, or folders of files that end in .yaml or .yml. They are read again when they change, and on SIGHUP.
    #[arg(
        long,
        value_name = "PATH",
        required = true,
        env = "TOLLGATE_CONFIG",
        value_delimiter = ':'
    )]
    pub config: Vec<PathBuf>,
    /// How the documents are read.
    #[command(flatten)]
    pub reading: document::Options,
    /// How often the documents and the certificates of gRPC are checked for changes, in seconds; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value = "5", env = "CONFIG_INTERVAL", value_parser = seconds)]
    pub config_interval: Duration,

    /// The address of gRPC. Port 0 is any free one.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8081",
        env = "GRPC_ADDRESS"
    )]
    pub grpc: SocketAddr,
    /// The address of HTTP: /json, /healthcheck and /metrics.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080",
        env = "HTTP_ADDRESS"
    )]
    pub http: SocketAddr,
    /// The address of the admin API and its dashboard, at /admin. It needs a token.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:9090",
        env = "ADMIN_ADDRESS"
    )]
    pub admin: SocketAddr,
    /// A token of the admin API, and the name of its user: NAME=TOKEN. Without one there is no admin API.
    #[arg(
        long,
        value_name = "NAME=TOKEN",
        env = "ADMIN_TOKENS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub admin_token: Vec<String>,

    /// The URL of Redis, such as redis://localhost. Without it requests are counted in this process alone.
    #[arg(
        long,
        value_name = "URL",
        env = "REDIS_URL",
        hide_env_values = true,
        conflicts_with = "redis_cluster"
    )]
    pub redis_url: Option<String>,
    /// The URLs of nodes of a Redis Cluster.
    #[arg(
        long,
        value_name = "URL",
        env = "REDIS_CLUSTER",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub redis_cluster: Vec<String>,
    /// The URLs of Redis Sentinels.
    #[arg(long, value_name = "URL", env = "REDIS_SENTINELS", hide_env_values = true, value_delimiter = ',', requires = "redis_master", conflicts_with_all = ["redis_url", "redis_cluster"])]
    pub redis_sentinels: Vec<String>,
    /// The name of the master that Sentinels watch.
    #[arg(
        long,
        value_name = "NAME",
        env = "REDIS_MASTER",
        requires = "redis_sentinels"
    )]
    pub redis_master: Option<String>,
    /// The certificates that Redis's is signed by, in PEM. Default: those of the system.
    #[arg(long, value_name = "FILE", env = "REDIS_CA")]
    pub redis_ca: Option<PathBuf>,
    /// The client certificate for Redis, in PEM.
    #[arg(long, value_name = "FILE", env = "REDIS_CERT", requires = "redis_key")]
    pub redis_cert: Option<PathBuf>,
    /// The key of the client certificate for Redis, in PEM.
    #[arg(long, value_name = "FILE", env = "REDIS_KEY", requires = "redis_cert")]
    pub redis_key: Option<PathBuf>,
    /// What the names of all keys in Redis begin with: empty, or at most 16 characters with a colon at the end.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "ratelimit:",
        env = "REDIS_PREFIX"
    )]
    pub redis_prefix: String,
    /// How long a call of Redis may take, in milliseconds. Envoy waits 20 ms for an answer, unless it is set otherwise.
    #[arg(long, value_name = "MS", default_value = "15", env = "REDIS_TIMEOUT_MS", value_parser = millis)]
    pub redis_timeout: Duration,
    /// What is answered when Redis fails.
    #[arg(long, value_enum, default_value_t, env = "ON_ERROR")]
    pub on_error: OnError,

    /// The certificate of gRPC, in PEM. It is read again when it changes, and on SIGHUP, as are its key and the clients' authorities.
    #[arg(long, value_name = "FILE", env = "TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The certificates that clients' are signed by, in PEM. Clients without one are rejected.
    #[arg(
        long,
        value_name = "FILE",
        env = "TLS_CLIENT_CA",
        requires = "tls_cert"
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// A DNS name or URI in client certificates whose holders may send credits (is_negative_hits).
    #[arg(
        long,
        value_name = "NAME",
        env = "CREDIT_NAMES",
        value_delimiter = ',',
        requires = "tls_client_ca"
    )]
    pub credit_name: Vec<String>,

    /// The most requests that are decided at once. More are answered by RESOURCE_EXHAUSTED.
    #[arg(long, value_name = "N", default_value = "10000", env = "MAX_REQUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_requests: u32,
    /// The most connections of each port. More wait until others are closed.
    #[arg(long, value_name = "N", default_value = "10000", env = "MAX_CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// After how long a connection of gRPC is closed, in seconds, once its requests are answered; 0 for never. Clients connect again.
    #[arg(long, value_name = "SECONDS", default_value = "86400", env = "MAX_CONNECTION_AGE", value_parser = seconds)]
    pub max_connection_age: Duration,
    /// For how long the server goes on after SIGTERM, reported as not serving, before it closes its ports, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "0", env = "DRAIN_DELAY", value_parser = seconds)]
    pub drain_delay: Duration,
    /// How long requests may take to end after the ports are closed, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", env = "DRAIN_TIMEOUT", value_parser = seconds)]
    pub drain_timeout: Duration,

    /// What is logged: a level, or levels of modules, such as warn,tollgate_server=debug.
    #[arg(long, value_name = "LEVELS", default_value = "info", env = "RUST_LOG", value_parser = levels)]
    pub log: Targets,

    /// Answer OK to all requests, and count as usual.
    #[arg(long, env = "SHADOW_MODE", value_parser = BoolishValueParser::new())]
    pub shadow_mode: bool,
    /// Treat all rules as in quota mode.
    #[arg(long, env = "QUOTA_MODE", value_parser = BoolishValueParser::new())]
    pub quota_mode: bool,
    /// Leave out the fields RateLimit, RateLimit-Policy and Retry-After, and the bodies of rejections.
    #[arg(long, env = "NO_RESPONSE_DETAILS", value_parser = BoolishValueParser::new())]
    pub no_response_details: bool,
    /// Add dynamic metadata to responses: domain, descriptors, cost, and the metadata of rules.
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", value_parser = BoolishValueParser::new())]
    pub dynamic_metadata: bool,
    /// The share of a limit above which requests count as near it, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "80", env = "NEAR_LIMIT_PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    pub near_limit_percent: u8,
}

impl ValueEnum for OnError {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Admit, Self::Reject, Self::Error]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::Admit => PossibleValue::new("admit").help("OK"),
            Self::Reject => PossibleValue::new("reject").help("OVER_LIMIT"),
            Self::Error => {
                PossibleValue::new("error").help("UNAVAILABLE; Envoy's failure_mode_deny decides")
            }
        })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn millis(text: &str) -> Result<Duration, String> {
    let millis = text
        .parse()
        .map_err(|error: std::num::ParseIntError| error.to_string())?;
    Ok(Duration::from_millis(millis))
}

/// An empty variable of the environment is the default, and does not hide errors.
fn levels(text: &str) -> Result<Targets, ParseError> {
    let text = if text.is_empty() { "info" } else { text };
    text.parse()
}
