//! The master of a Sentinel deployment.

use std::{fmt, sync::Mutex, time::Duration};

use deadpool_redis::{Connection, Pool};
use redis::{ConnectionAddr, ConnectionInfo, Value, aio::MultiplexedConnection};
use tokio::{task::JoinSet, time::timeout};

use super::pool::{checkout, connect};
use crate::{
    error::{ConfigError, StoreError},
    store::redis::error_class,
    sync::lock,
};

/// Timeout of the sentinels where no request waits.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The current master, by the sentinels' reply and its own role.
///
/// Whenever a connection is opened, all sentinels are queried at once, and the first reply counts; then the server is
/// queried for its role. So a connection never leads to a server that was demoted before; one that is demoted later
/// replies `READONLY`, and its connection is closed.
pub(crate) struct Sentinel {
    name: String,
    sentinels: Vec<Pool>,
    /// How to connect to a master; its address is replaced.
    template: ConnectionInfo,
    open: fn(ConnectionInfo) -> Result<Pool, ConfigError>,
    /// The last known master.
    master: Mutex<Option<(String, u16, Pool)>>,
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
            master: Mutex::default(),
        })
    }

    /// A connection to the master.
    pub(crate) async fn connection(&self) -> Result<Connection, StoreError> {
        let mut connection = checkout(&self.master_pool(Via::Pool).await?).await?;
        if is_master(&mut connection).await? {
            Ok(connection)
        } else {
            // Not returned to the pool.
            drop(Connection::take(connection));
            Err(no_master())
        }
    }

    /// A new connection to the master, found by new connections to the sentinels: see
    /// [`ConnectionSource::connect`](super::ConnectionSource::connect).
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let mut connection = connect(&self.master_pool(Via::NewConnection).await?).await?;
        if is_master(&mut connection).await? {
            Ok(connection)
        } else {
            Err(no_master())
        }
    }

    async fn master_pool(&self, via: Via) -> Result<Pool, StoreError> {
        match self.master_address(via).await {
            Ok((host, port)) => self.pool(host, port),
            // The sentinels may be down while the master is well.
            Err(error) => self.last_pool().ok_or(error),
        }
    }

    /// The master's address, by the first sentinel that knows it.
    async fn master_address(&self, via: Via) -> Result<(String, u16), StoreError> {
        let mut queries = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, name) = (sentinel.clone(), self.name.clone());
            queries.spawn(async move {
                let reply = timeout(SENTINEL_TIMEOUT, address(&sentinel, &name, via)).await;
                reply.unwrap_or(Err(StoreError::Timeout))
            });
        }
        let mut error = StoreError::Connection("no sentinel answers".into());
        while let Some(reply) = queries.join_next().await {
            match reply {
                Ok(Ok(address)) => return Ok(address),
                Ok(Err(failed)) => error = failed,
                Err(_) => {}
            }
        }
        Err(error)
    }

    fn last_pool(&self) -> Option<Pool> {
        let master = lock(&self.master);
        master.as_ref().map(|(_, _, pool)| pool.clone())
    }

    fn pool(&self, host: String, port: u16) -> Result<Pool, StoreError> {
        let mut master = lock(&self.master);
        if let Some((known_host, known_port, pool)) = &*master
            && (known_host, *known_port) == (&host, port)
        {
            return Ok(pool.clone());
        }
        let info = self.template.clone();
        let info = info.set_addr(with_address(self.template.addr(), &host, port));
        let pool = (self.open)(info);
        let pool = pool.map_err(|error| StoreError::Connection(error.to_string().into()))?;
        *master = Some((host, port, pool.clone()));
        Ok(pool)
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
async fn address(sentinel: &Pool, name: &str, via: Via) -> Result<(String, u16), StoreError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let address: Result<Option<(String, u16)>, _> = match via {
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
        Err(error) if error.code() == Some("NOPERM") => Ok(true),
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
