//! The master of a Sentinel deployment.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use redis::{ConnectionInfo, Value, aio::MultiplexedConnection};
use tokio::{task::JoinSet, time::timeout};

use super::{
    opener::Opener,
    server::{Address, MakeOpener, with_address},
};
use crate::{
    error::{ConfigError, StoreError},
    redis::error_class,
    sync::lock,
};

/// Timeout of each sentinel's reply.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The current master, by the sentinels' reply and its own role.
///
/// Whenever a connection is opened, all sentinels are queried at once, and each server that they name is queried for its role; the
/// first that is a master counts. So a connection never leads to a server that was demoted before; one that is demoted later
/// replies `READONLY`, and its connection is closed.
pub(crate) struct Sentinel {
    name: String,
    sentinels: Vec<Arc<Opener>>,
    /// How to connect to a master; its address is replaced.
    template: ConnectionInfo,
    opener: MakeOpener,
    last_master: Mutex<Option<(Address, Arc<Opener>)>>,
}

impl Sentinel {
    /// The master that these sentinels know by a name.
    pub(crate) fn new(
        name: String,
        sentinels: Vec<ConnectionInfo>,
        template: ConnectionInfo,
        opener: MakeOpener,
    ) -> Result<Self, ConfigError> {
        if sentinels.is_empty() {
            return Err(ConfigError::new(
                "no sentinel",
                "at least one URL of a sentinel",
            ));
        }
        Ok(Self {
            name,
            sentinels: sentinels
                .into_iter()
                .map(|info| opener(info).map(Arc::new))
                .collect::<Result<_, _>>()?,
            template,
            opener,
            last_master: Mutex::default(),
        })
    }

    /// Opens a connection to the master.
    ///
    /// Each server that a sentinel names is tried once, and none waits for another: a sentinel that was cut off names a server that is
    /// silent or demoted.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let mut replies = self.ask_sentinels();
        let (mut attempts, mut tried) = (JoinSet::new(), Vec::new());
        let (mut unnamed, mut unopened) = (None, None);
        loop {
            tokio::select! {
                Some(reply) = replies.join_next() => match reply {
                    Ok(Ok(address)) if !tried.contains(&address) => {
                        tried.push(address.clone());
                        let opener = self.opener_at(&address)?;
                        attempts.spawn(async move {
                            let connection = connect_to_master(&opener).await?;
                            Ok((address, opener, connection))
                        });
                    }
                    Ok(Err(error)) => unnamed = Some(error),
                    Ok(Ok(_)) | Err(_) => {}
                },
                Some(attempt) = attempts.join_next() => match attempt {
                    Ok(Ok((address, opener, connection))) => {
                        *self.last_master() = Some((address, opener));
                        return Ok(connection);
                    }
                    Ok(Err(error)) => unopened = Some(error),
                    Err(_) => {}
                },
                else => break,
            }
        }
        let last = self
            .last_master()
            .as_ref()
            .map(|(_, opener)| opener.clone());
        match (unopened, last) {
            (Some(error), _) => Err(error),
            // The sentinels may be down while the master is well.
            (None, Some(opener)) => connect_to_master(&opener).await,
            (None, None) => {
                Err(unnamed.unwrap_or_else(|| StoreError::connection("no sentinel answers")))
            }
        }
    }

    /// Asks all sentinels for the master's address.
    fn ask_sentinels(&self) -> JoinSet<Result<Address, StoreError>> {
        let queries = self.sentinels.iter().map(|sentinel| {
            let (sentinel, name) = (sentinel.clone(), self.name.clone());
            async move {
                let reply = timeout(SENTINEL_TIMEOUT, address(&sentinel, &name)).await;
                reply.unwrap_or(Err(StoreError::timeout()))
            }
        });
        queries.collect()
    }

    /// The opener of connections to an address: that of the last master, or a new one.
    fn opener_at(&self, address: &Address) -> Result<Arc<Opener>, StoreError> {
        if let Some((last, opener)) = &*self.last_master()
            && last == address
        {
            return Ok(opener.clone());
        }
        let (host, port) = address;
        let info = self.template.clone();
        let info = info.set_addr(with_address(self.template.addr(), host, *port));
        let opener = (self.opener)(info).map(Arc::new);
        opener.map_err(|error| StoreError::connection(error.to_string()))
    }

    fn last_master(&self) -> MutexGuard<'_, Option<(Address, Arc<Opener>)>> {
        lock(&self.last_master)
    }
}

fn no_master() -> StoreError {
    StoreError::Server {
        code: "READONLY".into(),
        message: "the sentinels name a server that is no master".into(),
    }
}

async fn open(opener: &Opener) -> Result<MultiplexedConnection, StoreError> {
    let connection = opener.open().await;
    connection.map_err(|error| error_class::to_store_error(&error))
}

/// Opens a connection to a server, which has to be a master by its own role.
async fn connect_to_master(opener: &Opener) -> Result<MultiplexedConnection, StoreError> {
    let mut connection = open(opener).await?;
    if is_master(&mut connection).await? {
        Ok(connection)
    } else {
        Err(no_master())
    }
}

/// The master's address, by one sentinel.
async fn address(sentinel: &Opener, name: &str) -> Result<Address, StoreError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let mut connection = open(sentinel).await?;
    let address: Result<Option<Address>, _> = command.query_async(&mut connection).await;
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
