//! A lane's connection, and the pool it is from.

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

/// A connection on which nothing was sent for so long may have been closed by the other side without a word.
const STALE: Duration = Duration::from_secs(1);

/// Why a command was not answered.
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
    origin: Backend,
    /// How many the lanes may hold of the pool's; more are detached, so that whoever shares the pool isn't left waiting.
    pub(crate) share: usize,
    held: Arc<AtomicUsize>,
}

#[derive(Clone)]
enum Backend {
    Pool(Pool),
    Sentinel(Arc<Sentinel>),
}

impl ConnectionSource {
    pub(crate) async fn connection(&self) -> Result<Connection, StoreError> {
        match &self.origin {
            Backend::Pool(pool) => checkout(pool).await,
            Backend::Sentinel(sentinel) => sentinel.connection().await,
        }
    }

    /// A connection for one command, beside the lanes'.
    pub(crate) async fn loan(&self) -> Result<PooledConnection, StoreError> {
        let connection = self.connection().await?;
        Ok(PooledConnection::new(connection))
    }

    pub(crate) fn new(pool: Pool, share: usize) -> Self {
        Self::of(Backend::Pool(pool), share)
    }

    pub(crate) fn watched(sentinel: Sentinel, share: usize) -> Self {
        Self::of(Backend::Sentinel(Arc::new(sentinel)), share)
    }

    fn of(origin: Backend, share: usize) -> Self {
        Self {
            origin,
            share,
            held: Arc::default(),
        }
    }
}

/// The connection of a lane, which its trips share. It is opened by the first of them.
#[derive(Debug)]
pub(crate) struct SharedConnection {
    source: ConnectionSource,
    link: Mutex<Option<OpenConnection>>,
}

/// What a trip holds of the connection it is sent on.
pub(crate) struct ConnectionRef {
    road: Arc<SharedConnection>,
    connection: MultiplexedConnection,
    is_over: Arc<AtomicBool>,
}

#[derive(Debug)]
struct OpenConnection {
    connection: MultiplexedConnection,
    /// None if it was detached from the pool.
    _place: Option<PoolSlot>,
    /// Set by a trip that found it broken.
    is_over: Arc<AtomicBool>,
    used: Instant,
}

/// A connection's place in the pool.
struct PoolSlot {
    connection: Option<Connection>,
    held: Arc<AtomicUsize>,
}

impl SharedConnection {
    pub(crate) fn new(source: ConnectionSource) -> Self {
        Self {
            source,
            link: Mutex::default(),
        }
    }

    /// The connection, opened if there is none, or the one there was doesn't answer any more.
    pub(crate) async fn way(self: &Arc<Self>) -> Result<ConnectionRef, StoreError> {
        let mut link = self.link.lock().await;
        if let Some(mut stale) = link.take_if(|link| link.used.elapsed() > STALE) {
            // Should nobody wait for the answer any more, it is as good as none.
            if Box::pin(answers(&mut stale.connection)).await {
                *link = Some(stale);
            }
        }
        drop(link.take_if(|link| link.is_over.load(Ordering::Acquire)));
        let link = match &mut *link {
            Some(link) => link,
            // Seldom, and large: whoever awaits this would be as large.
            none => none.insert(Box::pin(OpenConnection::open(&self.source)).await?),
        };
        link.used = Instant::now();
        Ok(ConnectionRef {
            road: self.clone(),
            connection: link.connection.clone(),
            is_over: link.is_over.clone(),
        })
    }
}

async fn answers(connection: &mut MultiplexedConnection) -> bool {
    let ping: Result<Value, _> = redis::cmd("PING").query_async(connection).await;
    ping.is_ok()
}

impl ConnectionRef {
    pub(crate) async fn query(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        cmd.query_async(&mut self.connection).await
    }

    /// Sends a command to a node of a cluster that is about to take over its keys, and answers for those it has already.
    pub(crate) async fn query_with_asking(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        Box::pin(query_with_asking(&mut self.connection, cmd)).await
    }

    /// Closes the connection, if it is still the one in use: now, or when the next trip would use it. Somebody may be opening
    /// another one, which takes as long as his deadline; whoever is behind this trip isn't to wait for that.
    pub(crate) fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Ok(mut link) = self.road.link.try_lock() {
            drop(link.take_if(|link| link.is_over.load(Ordering::Acquire)));
        }
    }
}

impl OpenConnection {
    async fn open(source: &ConnectionSource) -> Result<Self, StoreError> {
        let connection = source.connection().await?;
        let held = &source.held;
        let (connection, place) = if held.fetch_add(1, Ordering::Relaxed) < source.share {
            let shared = MultiplexedConnection::clone(&connection);
            let place = PoolSlot {
                connection: Some(connection),
                held: held.clone(),
            };
            (shared, Some(place))
        } else {
            held.fetch_sub(1, Ordering::Relaxed);
            (Connection::take(connection), None)
        };
        Ok(Self {
            connection,
            _place: place,
            is_over: Arc::default(),
            used: Instant::now(),
        })
    }
}

/// The connection is closed, so that the pool doesn't hand it out again: it may be dead.
impl Drop for PoolSlot {
    fn drop(&mut self) {
        drop(self.connection.take().map(Connection::take));
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for PoolSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

impl fmt::Debug for ConnectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Source");
        match &self.origin {
            Backend::Pool(pool) => f.field("pool", &pool.status()),
            Backend::Sentinel(sentinel) => f.field("sentinel", sentinel),
        };
        f.field("share", &self.share).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use redis::cmd;
    use testkit::{Proxy, Server};
    use tokio::time::timeout;

    use super::*;

    /// A pool of one connection, which whoever comes next has to take.
    fn source(addr: impl fmt::Display) -> (ConnectionSource, Pool) {
        let mut config = deadpool_redis::Config::from_url(format!("redis://{addr}"));
        config.pool = Some(deadpool_redis::PoolConfig::new(1));
        let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1));
        let pool = pool.expect("a pool");
        (ConnectionSource::new(pool.clone(), 1), pool)
    }

    async fn ask(source: &ConnectionSource, cmd: &Cmd) -> Result<Value, RedisError> {
        source.loan().await.expect("a connection").query(cmd).await
    }

    /// The number of the connection that the next one gets.
    async fn number(source: &ConnectionSource) -> i64 {
        match ask(source, cmd("CLIENT").arg("ID")).await {
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
    async fn a_connection_that_answered_is_the_next_ones() {
        let server = Server::start();
        let (source, pool) = source(server.addr());
        let first = number(&source).await;
        assert_eq!(number(&source).await, first);
        // So is one that said that it can't be done, for that was an answer.
        for error in [
            "WRONGTYPE a list",
            "ERR no",
            "BUSY for long",
            "OOM no memory",
            "CLUSTERDOWN no node",
            "NOPERM no rights",
        ] {
            assert!(ask(&source, &error_of(error)).await.is_err());
            assert_eq!(number(&source).await, first, "{error}");
        }
        assert_eq!(pool.status().size, 1);
    }

    #[tokio::test]
    async fn a_connection_to_a_server_of_no_use_is_no_ones() {
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
            let before = number(&source).await;
            assert!(ask(&source, &error_of(error)).await.is_err());
            assert_ne!(number(&source).await, before, "{error}");
        }
    }

    /// Drops a command amid its way; returns how many connections the pool has then.
    async fn give_up(
        pool: &Pool,
        asking: impl Future<Output = Result<Value, RedisError>>,
    ) -> usize {
        assert!(timeout(Duration::from_millis(50), asking).await.is_err());
        pool.status().size
    }

    /// Whoever came next on it would wait for both answers.
    #[tokio::test]
    async fn a_connection_that_nobody_waited_for_to_answer_is_no_ones() {
        let server = Server::start();
        let proxy = Proxy::to(server.addr());
        let (source, pool) = source(proxy.addr());
        for asking in [false, true] {
            let before = number(&source).await;
            let loan = source.loan().await.expect("a connection");
            proxy.hold();
            let ping = cmd("PING");
            let left = match asking {
                false => give_up(&pool, loan.query(&ping)).await,
                true => give_up(&pool, loan.query_with_asking(&ping)).await,
            };
            assert_eq!(left, 0);
            proxy.pass();
            assert_ne!(number(&source).await, before);
        }
        // Nor is one that nothing was sent on, for it may have been cut since.
        drop(source.loan().await.expect("a connection"));
        assert_eq!(pool.status().size, 0);
    }

    #[tokio::test]
    async fn a_connection_that_broke_is_no_ones() {
        let server = Server::start();
        let proxy = Proxy::to(server.addr());
        let (source, pool) = source(proxy.addr());
        number(&source).await;
        let loan = source.loan().await.expect("a connection");
        proxy.halve();
        assert!(loan.query(&cmd("PING")).await.is_err());
        assert_eq!(pool.status().size, 0);
        proxy.pass();
        number(&source).await;
    }
}
