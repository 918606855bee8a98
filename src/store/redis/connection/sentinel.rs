//! The master of a Sentinel deployment.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use deadpool_redis::{Connection, Pool};
use redis::{ConnectionAddr, ConnectionInfo, Value};
use tokio::{task::JoinSet, time::timeout};

use super::pool::checkout;
use crate::{
    error::{ConfigError, StoreError},
    store::redis::error_class,
};

/// Timeout of the sentinels where no request waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// The current master, by the sentinels' reply and its own role.
///
/// Whenever a connection is opened, all sentinels are queried at once, and the first reply counts; then the server is
/// asked for its role. So a connection never leads to a server that was demoted before; one that is demoted later
/// replies `READONLY`, and its connection is closed.
pub(crate) struct Sentinel {
    name: String,
    sentinels: Vec<Pool>,
    /// How to connect to a master; its address is replaced.
    pattern: ConnectionInfo,
    open: fn(ConnectionInfo) -> Result<Pool, ConfigError>,
    /// The last known master.
    master: Mutex<Option<(String, u16, Pool)>>,
}

impl Sentinel {
    /// The master that these sentinels know by a name.
    pub(crate) fn new(
        name: String,
        sentinels: Vec<ConnectionInfo>,
        pattern: ConnectionInfo,
        open: fn(ConnectionInfo) -> Result<Pool, ConfigError>,
    ) -> Result<Self, ConfigError> {
        if sentinels.is_empty() {
            return Err(ConfigError::new("no sentinel", "the URL of one at least"));
        }
        Ok(Self {
            name,
            sentinels: sentinels.into_iter().map(open).collect::<Result<_, _>>()?,
            pattern,
            open,
            master: Mutex::default(),
        })
    }

    /// A connection to the master.
    pub(crate) async fn connection(&self) -> Result<Connection, StoreError> {
        let pool = match self.ask().await {
            Ok((host, port)) => self.pool(host, port)?,
            // The sentinels may be down while the master is well.
            Err(error) => self.last().ok_or(error)?,
        };
        let mut connection = checkout(&pool).await?;
        match is_master(&mut connection).await? {
            true => Ok(connection),
            false => {
                // Not returned to the pool.
                drop(Connection::take(connection));
                Err(StoreError::Server {
                    code: "READONLY".into(),
                    message: "the sentinels name a server that is no master".into(),
                })
            }
        }
    }

    /// The master's address, by the first sentinel that knows it.
    async fn ask(&self) -> Result<(String, u16), StoreError> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, name) = (sentinel.clone(), self.name.clone());
            asked.spawn(async move {
                let answer = timeout(PATIENCE, address(&sentinel, &name)).await;
                answer.unwrap_or(Err(StoreError::Timeout))
            });
        }
        let mut error = StoreError::Connection("no sentinel answers".into());
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(address)) => return Ok(address),
                Ok(Err(wrong)) => error = wrong,
                Err(_) => {}
            }
        }
        Err(error)
    }

    fn last(&self) -> Option<Pool> {
        let master = self.master.lock().unwrap_or_else(PoisonError::into_inner);
        master.as_ref().map(|(_, _, pool)| pool.clone())
    }

    fn pool(&self, host: String, port: u16) -> Result<Pool, StoreError> {
        let mut master = self.master.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((its_host, its_port, pool)) = &*master
            && (its_host, *its_port) == (&host, port)
        {
            return Ok(pool.clone());
        }
        let info = self.pattern.clone();
        let info = info.set_addr(at(self.pattern.addr(), &host, port));
        let pool = (self.open)(info);
        let pool = pool.map_err(|error| StoreError::Connection(error.to_string().into()))?;
        *master = Some((host, port, pool.clone()));
        Ok(pool)
    }
}

/// An address that is connected to in the same way.
pub(crate) fn at(pattern: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    match pattern.clone() {
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
async fn address(sentinel: &Pool, name: &str) -> Result<(String, u16), StoreError> {
    let mut connection = checkout(sentinel).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let address: Result<Option<(String, u16)>, _> = ask.query_async(&mut *connection).await;
    let address = address.map_err(|error| error_class::of(&error))?;
    address.ok_or_else(|| StoreError::Server {
        code: "NOMASTER".into(),
        message: format!("the sentinel knows no master {name:?}").into(),
    })
}

/// Whether a server reports the role of a master. One that does not permit the question is taken for one.
async fn is_master(connection: &mut Connection) -> Result<bool, StoreError> {
    let role: Result<Value, _> = redis::cmd("ROLE").query_async(&mut **connection).await;
    match role {
        Ok(Value::Array(role)) => Ok(role.first() == Some(&Value::BulkString(b"master".to_vec()))),
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("NOPERM") => Ok(true),
        Err(error) => Err(error_class::of(&error)),
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
