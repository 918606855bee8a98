//! The servers of a store, and where connections to them come from.

use std::{fmt, sync::Arc, time::Duration};

use deadpool_redis::Pool;
use redis::{ConnectionAddr, ConnectionInfo, aio::MultiplexedConnection};

use super::{
    Sentinel,
    opener::{Opener, open_by_manager},
};
use crate::{
    error::{ConfigError, StoreError},
    redis::error_class,
};

/// The response timeout of connections by an application's manager, in place of its own: the client drops replies that come later.
const MAX_RESPONSE_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);

/// One server or a cluster.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Server),
    Cluster(Box<ClusterConfig>),
}

impl Servers {
    /// The server's name, unless it is a cluster, whose servers are not known yet.
    pub(super) fn single_name(&self) -> Option<Arc<str>> {
        match self {
            Self::One(server) => Some(server.name.clone()),
            Self::Cluster(_) => None,
        }
    }
}

/// A server, and how connections to it are opened.
#[derive(Clone)]
pub(crate) struct Server {
    /// Its name for operators: its address, if it is known, and never a password.
    pub(super) name: Arc<str>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Own(Arc<Opener>),
    /// The pool of the application, of which only the manager is used: a connection of the pool is driven by the runtime that opened
    /// it, which may stand still.
    Pool(Pool),
    Sentinel(Arc<Sentinel>),
}

impl Server {
    pub(crate) fn new(name: impl Into<Arc<str>>, opener: Opener) -> Self {
        Self {
            name: name.into(),
            source: Source::Own(Arc::new(opener)),
        }
    }

    pub(crate) fn of_pool(pool: Pool) -> Self {
        Self {
            name: "the server".into(),
            source: Source::Pool(pool),
        }
    }

    pub(crate) fn of_sentinel(name: impl Into<Arc<str>>, sentinel: Sentinel) -> Self {
        Self {
            name: name.into(),
            source: Source::Sentinel(Arc::new(sentinel)),
        }
    }

    /// Opens a connection, which the current runtime drives.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let connection = match &self.source {
            Source::Own(opener) => opener.open().await,
            Source::Pool(pool) => {
                let connection = open_by_manager(pool.manager()).await;
                connection.map(|mut connection| {
                    connection.set_response_timeout(MAX_RESPONSE_TIMEOUT);
                    connection
                })
            }
            Source::Sentinel(sentinel) => return sentinel.connect().await,
        };
        connection.map_err(|error| error_class::to_store_error(&error))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.name).finish()
    }
}

/// Makes the opener of connections to an address.
pub(crate) type MakeOpener = fn(ConnectionInfo) -> Result<Opener, ConfigError>;

/// How the servers of a cluster are found.
pub(crate) struct ClusterConfig {
    /// The first configured server, whose URL is the template for all connections.
    template: ConnectionInfo,
    opener: MakeOpener,
    /// The configured servers.
    pub(super) seeds: Vec<(Address, Server)>,
}

/// The host and port of a server.
pub(super) type Address = (String, u16);

impl ClusterConfig {
    /// A cluster that is found through any of the configured servers.
    pub(crate) fn new(seeds: Vec<ConnectionInfo>, opener: MakeOpener) -> Result<Self, ConfigError> {
        let none = || ConfigError::new("a cluster without a node", "at least one URL of a node");
        let template = seeds.first().cloned().ok_or_else(none)?;
        if let Some(seed) = seeds.iter().find(|seed| seed.redis_settings().db() != 0) {
            let db = seed.redis_settings().db();
            return Err(ConfigError::new(
                format!("database {db} of a cluster"),
                "database 0, the only one of a cluster",
            ));
        }
        let seeds = seeds.into_iter().map(|seed| {
            let (host, port) = match seed.addr() {
                ConnectionAddr::Tcp(host, port) => (host.clone(), *port),
                ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
                _ => {
                    return Err(ConfigError::new(
                        "a cluster node without a host and port",
                        "a URL such as redis://10.0.0.1:6379",
                    ));
                }
            };
            let server = Server::new(format!("{host}:{port}"), opener(seed)?);
            Ok(((host, port), server))
        });
        Ok(Self {
            seeds: seeds.collect::<Result<_, _>>()?,
            template,
            opener,
        })
    }

    /// The server at an address; `None` if it can't be an address.
    pub(super) fn server_at(&self, host: &str, port: u16) -> Option<Server> {
        let address = with_address(self.template.addr(), host, port);
        let opener = (self.opener)(self.template.clone().set_addr(address)).ok()?;
        Some(Server::new(format!("{host}:{port}"), opener))
    }
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig")
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

/// The template's kind of address, with another host and port.
pub(super) fn with_address(template: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    match template.clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    }
}
