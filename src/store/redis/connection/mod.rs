//! A worker's connection, and where connections come from.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_redis::{Connection, Pool};
use redis::{Cmd, RedisError, Value, aio::MultiplexedConnection};
use tokio::sync::Mutex;

use self::{
    pool::{PooledConnection, checkout, query_with_asking},
    sentinel::Sentinel,
};
use crate::error::StoreError;

mod pool;
pub(crate) mod sentinel;
pub(crate) mod tls;

/// A connection that was idle for this long may have been closed by the other side unnoticed.
const MAX_IDLE: Duration = Duration::from_secs(1);

/// Why a command has no reply.
#[derive(Debug)]
pub(crate) enum RunError {
    /// No connection could be opened, set up or chosen; the command was not sent.
    NotConnected(StoreError),
    /// An error reply, or a connection that broke.
    Failed(StoreError),
}

impl From<RunError> for StoreError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::NotConnected(error) | RunError::Failed(error) => error,
        }
    }
}

/// Where connections come from.
#[derive(Clone)]
pub(crate) struct ConnectionSource {
    backend: Backend,
    /// The server's name for operators: its address, if it is known, and never a password.
    server: Arc<str>,
    /// Connections of the pool that workers may hold at most; further ones are detached, so that other users of the pool are
    /// not starved.
    pub(crate) max_pooled: usize,
    pooled: Arc<AtomicUsize>,
    /// The workers' open connections, in the pool or detached.
    open: Arc<AtomicUsize>,
}

#[derive(Clone)]
enum Backend {
    Pool(Pool),
    Sentinel(Arc<Sentinel>),
}

impl ConnectionSource {
    pub(crate) async fn connection(&self) -> Result<Connection, StoreError> {
        match &self.backend {
            Backend::Pool(pool) => checkout(pool).await,
            Backend::Sentinel(sentinel) => sentinel.connection().await,
        }
    }

    /// A connection for one command, beside those of the workers.
    pub(crate) async fn checkout(&self) -> Result<PooledConnection, StoreError> {
        let connection = self.connection().await?;
        Ok(PooledConnection::new(connection))
    }

    pub(crate) fn new(pool: Pool, max_pooled: usize) -> Self {
        Self::with_backend(Backend::Pool(pool), max_pooled)
    }

    pub(crate) fn from_sentinel(sentinel: Sentinel, max_pooled: usize) -> Self {
        Self::with_backend(Backend::Sentinel(Arc::new(sentinel)), max_pooled)
    }

    fn with_backend(backend: Backend, max_pooled: usize) -> Self {
        Self {
            backend,
            server: "the server".into(),
            max_pooled,
            pooled: Arc::default(),
            open: Arc::default(),
        }
    }

    /// Sets the server's name.
    pub(crate) fn named(mut self, server: impl Into<Arc<str>>) -> Self {
        self.server = server.into();
        self
    }

    pub(crate) fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// The number of open connections of workers.
    pub(crate) fn open_connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// A worker's connection, shared by its batches. The first of them opens it.
#[derive(Debug)]
pub(crate) struct SharedConnection {
    source: ConnectionSource,
    open: Mutex<Option<OpenConnection>>,
}

/// A batch's reference to the connection that it is sent on.
pub(crate) struct ConnectionRef {
    shared: Arc<SharedConnection>,
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

#[derive(Debug)]
struct OpenConnection {
    connection: MultiplexedConnection,
    /// `None` if it was detached from the pool.
    _slot: Option<PoolSlot>,
    /// Set by a batch that found it broken.
    broken: Arc<AtomicBool>,
    used: Instant,
    _counted: OpenCount,
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
struct OpenCount(Arc<AtomicUsize>);

impl OpenCount {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's slot in the pool.
struct PoolSlot {
    connection: Option<Connection>,
    pooled: Arc<AtomicUsize>,
}

impl SharedConnection {
    pub(crate) fn new(source: ConnectionSource) -> Self {
        Self {
            source,
            open: Mutex::default(),
        }
    }

    /// The open connection; opens one if there is none, or the old one does not respond.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<ConnectionRef, StoreError> {
        let mut open = self.open.lock().await;
        if let Some(mut stale) = open.take_if(|open| open.used.elapsed() > MAX_IDLE) {
            // If the check is cancelled, the connection counts as broken.
            if Box::pin(responds(&mut stale.connection)).await {
                *open = Some(stale);
            }
        }
        drop(open.take_if(|open| open.broken.load(Ordering::Acquire)));
        let open = match &mut *open {
            Some(open) => open,
            // Boxed: rare and large, it would enlarge the futures that await this.
            none => none.insert(Box::pin(OpenConnection::open(&self.source)).await?),
        };
        open.used = Instant::now();
        Ok(ConnectionRef {
            shared: self.clone(),
            connection: open.connection.clone(),
            broken: open.broken.clone(),
        })
    }
}

async fn responds(connection: &mut MultiplexedConnection) -> bool {
    let ping: Result<Value, _> = redis::cmd("PING").query_async(connection).await;
    ping.is_ok()
}

impl ConnectionRef {
    /// The server's name.
    pub(crate) fn server(&self) -> &Arc<str> {
        self.shared.source.server()
    }

    pub(crate) async fn query(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        cmd.query_async(&mut self.connection).await
    }

    /// Sends a command to a node of a cluster that is importing the slot of its keys (`ASKING`).
    pub(crate) async fn query_with_asking(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        Box::pin(query_with_asking(&mut self.connection, cmd)).await
    }

    /// Closes the connection, if it is still the current one: now, or when the next batch would use it. Another task
    /// may be opening a new one, which takes up to its timeout; the batches behind this one must not wait for that.
    pub(crate) fn close(&self) {
        self.broken.store(true, Ordering::Release);
        if let Ok(mut open) = self.shared.open.try_lock() {
            drop(open.take_if(|open| open.broken.load(Ordering::Acquire)));
        }
    }
}

impl OpenConnection {
    async fn open(source: &ConnectionSource) -> Result<Self, StoreError> {
        let connection = source.connection().await?;
        let pooled = &source.pooled;
        let (connection, slot) = if pooled.fetch_add(1, Ordering::Relaxed) < source.max_pooled {
            let shared = MultiplexedConnection::clone(&connection);
            let slot = PoolSlot {
                connection: Some(connection),
                pooled: pooled.clone(),
            };
            (shared, Some(slot))
        } else {
            pooled.fetch_sub(1, Ordering::Relaxed);
            (Connection::take(connection), None)
        };
        Ok(Self {
            connection,
            _slot: slot,
            broken: Arc::default(),
            used: Instant::now(),
            _counted: OpenCount::new(&source.open),
        })
    }
}

/// Closes the connection rather than returning it to the pool: it may be broken.
impl Drop for PoolSlot {
    fn drop(&mut self) {
        drop(self.connection.take().map(Connection::take));
        self.pooled.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for PoolSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSlot").finish_non_exhaustive()
    }
}

impl fmt::Debug for ConnectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("ConnectionSource");
        match &self.backend {
            Backend::Pool(pool) => f.field("pool", &pool.status()),
            Backend::Sentinel(sentinel) => f.field("sentinel", sentinel),
        };
        f.field("max_pooled", &self.max_pooled)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use redis::cmd;
    use testkit::{Proxy, Server};
    use tokio::time::timeout;

    use super::*;

    /// A pool of one connection.
    fn source(addr: impl fmt::Display) -> (ConnectionSource, Pool) {
        let mut config = deadpool_redis::Config::from_url(format!("redis://{addr}"));
        config.pool = Some(deadpool_redis::PoolConfig::new(1));
        let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1));
        let pool = pool.expect("a pool");
        (ConnectionSource::new(pool.clone(), 1), pool)
    }

    async fn query(source: &ConnectionSource, cmd: &Cmd) -> Result<Value, RedisError> {
        source
            .checkout()
            .await
            .expect("a connection")
            .query(cmd)
            .await
    }

    /// The id of the next connection.
    async fn next_id(source: &ConnectionSource) -> i64 {
        match query(source, cmd("CLIENT").arg("ID")).await {
            Ok(Value::Int(number)) => number,
            other => panic!("{other:?}"),
        }
    }

    fn error_of(text: &str) -> Cmd {
        let mut eval = cmd("EVAL");
        eval.arg(format!("return redis.error_reply('{text}')"))
            .arg(0);
        eval
    }

    #[tokio::test]
    async fn a_connection_that_replied_is_reused() {
        let server = Server::start();
        let (source, pool) = source(server.addr());
        let first = next_id(&source).await;
        assert_eq!(next_id(&source).await, first);
        // An error reply is a response, too.
        for error in [
            "WRONGTYPE a list",
            "ERR no",
            "BUSY for long",
            "OOM no memory",
            "CLUSTERDOWN no node",
            "NOPERM no rights",
        ] {
            assert!(query(&source, &error_of(error)).await.is_err());
            assert_eq!(next_id(&source).await, first, "{error}");
        }
        assert_eq!(pool.status().size, 1);
    }

    #[tokio::test]
    async fn a_connection_to_an_unusable_server_is_not_reused() {
        let server = Server::start();
        let (source, _pool) = source(server.addr());
        for error in [
            "READONLY a replica",
            "MASTERDOWN no master",
            "LOADING its data",
            "UNBLOCKED by another",
            "NOAUTH no password",
            "WRONGPASS another password",
        ] {
            let before = next_id(&source).await;
            assert!(query(&source, &error_of(error)).await.is_err());
            assert_ne!(next_id(&source).await, before, "{error}");
        }
    }

    /// Cancels a command in flight; returns the connections of the pool afterwards.
    async fn give_up(
        pool: &Pool,
        asking: impl Future<Output = Result<Value, RedisError>>,
    ) -> usize {
        assert!(timeout(Duration::from_millis(50), asking).await.is_err());
        pool.status().size
    }

    /// The next user of it would wait for both replies.
    #[tokio::test]
    async fn a_connection_whose_reply_was_not_awaited_is_not_reused() {
        let server = Server::start();
        let proxy = Proxy::to(server.addr());
        let (source, pool) = source(proxy.addr());
        for asking in [false, true] {
            let before = next_id(&source).await;
            let connection = source.checkout().await.expect("a connection");
            proxy.hold();
            let ping = cmd("PING");
            let left = match asking {
                false => give_up(&pool, connection.query(&ping)).await,
                true => give_up(&pool, connection.query_with_asking(&ping)).await,
            };
            assert_eq!(left, 0);
            proxy.pass();
            assert_ne!(next_id(&source).await, before);
        }
        // Nor is an idle one reused, since it may have been closed.
        drop(source.checkout().await.expect("a connection"));
        assert_eq!(pool.status().size, 0);
    }

    #[tokio::test]
    async fn a_broken_connection_is_not_reused() {
        let server = Server::start();
        let proxy = Proxy::to(server.addr());
        let (source, pool) = source(proxy.addr());
        next_id(&source).await;
        let connection = source.checkout().await.expect("a connection");
        proxy.halve();
        assert!(connection.query(&cmd("PING")).await.is_err());
        assert_eq!(pool.status().size, 0);
        proxy.pass();
        next_id(&source).await;
    }
}
