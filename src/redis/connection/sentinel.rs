//! The master of a Sentinel deployment.

use std::{
    fmt,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use deadpool_redis::{Connection, Pool};
use redis::{ConnectionAddr, ConnectionInfo, Value, aio::MultiplexedConnection};
use tokio::{task::JoinSet, time::timeout};

use super::pool::{checkout, connect};
use crate::{
    error::{ConfigError, StoreError},
    redis::error_class,
    sync::lock,
};

/// Timeout of the sentinels where no request waits.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The host and port of a server.
type Address = (String, u16);

/// The current master, by the sentinels' reply and its own role.
///
/// Whenever a connection is opened, all sentinels are queried at once, and each server that they name is queried for its role; the
/// first that is a master counts. So a connection never leads to a server that was demoted before; one that is demoted later
/// replies `READONLY`, and its connection is closed.
pub(crate) struct Sentinel {
    name: String,
    sentinels: Vec<Pool>,
    /// How to connect to a master; its address is replaced.
    template: ConnectionInfo,
    open: fn(ConnectionInfo) -> Result<Pool, ConfigError>,
    last_master: Mutex<Option<(Address, Pool)>>,
}

impl Sentinel {
    /// The master that these sentinels know by a name.
    pub(crate) fn new(
        name: String,
        sentinels: Vec<ConnectionInfo>,
        template: ConnectionInfo,
        open: fn(ConnectionInfo) -> Result<Pool, ConfigError>,
    ) -> Result<Self, ConfigError> {
        if sentinels.is_empty() {
            return Err(ConfigError::new(
                "no sentinel",
                "at least one URL of a sentinel",
            ));
        }
        Ok(Self {
            name,
            sentinels: sentinels.into_iter().map(open).collect::<Result<_, _>>()?,
            template,
            open,
            last_master: Mutex::default(),
        })
    }

    /// A connection to the master.
    pub(crate) async fn connection(&self) -> Result<Connection, StoreError> {
        let open = async |pool: Pool| {
            let mut connection = checkout(&pool).await?;
            if is_master(&mut connection).await? {
                Ok(connection)
            } else {
                // Not returned to the pool.
                drop(Connection::take(connection));
                Err(no_master())
            }
        };
        self.first_master(Via::Pool, open).await
    }

    /// A new connection to the master, found by new connections to the sentinels: see
    /// [`ConnectionSource::connect`](super::ConnectionSource::connect).
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let open = async |pool: Pool| {
            let mut connection = connect(&pool).await?;
            if is_master(&mut connection).await? {
                Ok(connection)
            } else {
                Err(no_master())
            }
        };
        self.first_master(Via::NewConnection, open).await
    }

    /// What `open` returns for the first server that is a master, of those that the sentinels name. Each is tried once, and none
    /// waits for another: a sentinel that was cut off names a server that is silent or demoted.
    async fn first_master<C, F>(&self, via: Via, open: impl Fn(Pool) -> F) -> Result<C, StoreError>
    where
        C: Send + 'static,
        F: Future<Output = Result<C, StoreError>> + Send + 'static,
    {
        let mut replies = self.ask_sentinels(via);
        let (mut attempts, mut tried) = (JoinSet::new(), Vec::new());
        let (mut unnamed, mut unopened) = (None, None);
        loop {
            tokio::select! {
                Some(reply) = replies.join_next() => match reply {
                    Ok(Ok(address)) if !tried.contains(&address) => {
                        tried.push(address.clone());
                        let pool = self.pool_at(&address)?;
                        let opening = open(pool.clone());
                        attempts.spawn(async move { Ok((address, pool, opening.await?)) });
                    }
                    Ok(Err(error)) => unnamed = Some(error),
                    Ok(Ok(_)) | Err(_) => {}
                },
                Some(attempt) = attempts.join_next() => match attempt {
                    Ok(Ok((address, pool, connection))) => {
                        *self.last_master() = Some((address, pool));
                        return Ok(connection);
                    }
                    Ok(Err(error)) => unopened = Some(error),
                    Err(_) => {}
                },
                else => break,
            }
        }
        let last = self.last_master().as_ref().map(|(_, pool)| pool.clone());
        match (unopened, last) {
            (Some(error), _) => Err(error),
            // The sentinels may be down while the master is well.
            (None, Some(pool)) => open(pool).await,
            (None, None) => {
                Err(unnamed.unwrap_or_else(|| StoreError::connection("no sentinel answers")))
            }
        }
    }

    /// Asks all sentinels for the master's address.
    fn ask_sentinels(&self, via: Via) -> JoinSet<Result<Address, StoreError>> {
        let queries = self.sentinels.iter().map(|sentinel| {
            let (sentinel, name) = (sentinel.clone(), self.name.clone());
            async move {
                let reply = timeout(SENTINEL_TIMEOUT, address(&sentinel, &name, via)).await;
                reply.unwrap_or(Err(StoreError::timeout()))
            }
        });
        queries.collect()
    }

    /// The pool of the server at an address: that of the last master, or a new one.
    fn pool_at(&self, address: &Address) -> Result<Pool, StoreError> {
        if let Some((last, pool)) = &*self.last_master()
            && last == address
        {
            return Ok(pool.clone());
        }
        let (host, port) = address;
        let info = self.template.clone();
        let info = info.set_addr(with_address(self.template.addr(), host, *port));
        let pool = (self.open)(info);
        pool.map_err(|error| StoreError::connection(error.to_string()))
    }

    fn last_master(&self) -> MutexGuard<'_, Option<(Address, Pool)>> {
        lock(&self.last_master)
    }
}

/// How a sentinel is asked.
#[derive(Clone, Copy)]
enum Via {
    Pool,
    NewConnection,
}

fn no_master() -> StoreError {
    StoreError::Server {
        code: "READONLY".into(),
        message: "the sentinels name a server that is no master".into(),
    }
}

/// The template's kind of address, with another host and port.
pub(crate) fn with_address(template: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
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

/// The master's address, by one sentinel.
async fn address(sentinel: &Pool, name: &str, via: Via) -> Result<Address, StoreError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let address: Result<Option<Address>, _> = match via {
        Via::Pool => command.query_async(&mut *checkout(sentinel).await?).await,
        Via::NewConnection => command.query_async(&mut connect(sentinel).await?).await,
    };
    let address = address.map_err(|error| error_class::to_store_error(&error))?;
    address.ok_or_else(|| StoreError::Server {
        code: "NOMASTER".into(),
        message: format!("the sentinel knows no master {name:?}").into(),
    })
}

/// Whether a server is a master by its own role. One that does not permit `ROLE` is taken for one.
async fn is_master(connection: &mut MultiplexedConnection) -> Result<bool, StoreError> {
    let role: Result<Value, _> = redis::cmd("ROLE").query_async(connection).await;
    match role {
        Ok(Value::Array(role)) => Ok(role.first() == Some(&Value::BulkString(b"master".to_vec()))),
        Ok(_) => Ok(true),
        Err(error) if matches!(error.code(), Some("NOPERM" | "ERR")) => Ok(true),
        Err(error) => Err(error_class::to_store_error(&error)),
    }
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinel")
            .field("name", &self.name)
            .field("sentinels", &self.sentinels.len())
            .finish_non_exhaustive()
    }
}
