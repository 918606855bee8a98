//! Where connections come from: a pool, or the master that sentinels name.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use deadpool_redis::{Connection, Pool};
use redis::aio::MultiplexedConnection;
use tokio::sync::Semaphore;

use self::{
    pool::{PooledConnection, checkout, connect},
    sentinel::Sentinel,
};
use crate::{error::StoreError, runtime::run_in_background};

pub(crate) mod pool;
pub(crate) mod sentinel;
pub(crate) mod shared;
pub(crate) mod tls;

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
    /// Connections of the pool that the workers of a runtime may hold at most.
    pub(crate) max_pooled: usize,
    /// For a pool of the application: connections of it that workers hold at most. Further ones are detached, so that other users of the
    /// pool are not starved. `None` for a pool of the store's own.
    shared_pool: Option<Arc<Semaphore>>,
    /// The workers' open connections, in the pool or detached.
    open: Arc<AtomicUsize>,
    /// How often a worker's connection broke, so far.
    failures: Arc<AtomicUsize>,
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

    /// A connection for one command, beside those of the workers. The background thread drives it: the caller's runtime may stand still
    /// when its next user needs it.
    pub(crate) async fn checkout(&self) -> Result<PooledConnection, StoreError> {
        const NO_RUNTIME: StoreError = StoreError::NoRuntime("a connection is opened");
        let source = self.clone();
        let connection = run_in_background(async move { source.connection().await });
        let connection = connection.await.unwrap_or(Err(NO_RUNTIME))?;
        Ok(PooledConnection::new(connection))
    }

    /// A new connection beside the pool, which this runtime drives: one of the pool may be driven by a runtime that stands still.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        match &self.backend {
            Backend::Pool(pool) => connect(pool).await,
            Backend::Sentinel(sentinel) => sentinel.connect().await,
        }
    }

    /// From a pool of the store's own.
    pub(crate) fn new(pool: Pool, max_pooled: usize) -> Self {
        Self::with_backend(Backend::Pool(pool), max_pooled)
    }

    /// From a pool of the application, of whose connections workers hold so many at most.
    pub(crate) fn shared(pool: Pool, max_pooled: usize) -> Self {
        Self {
            shared_pool: Some(Arc::new(Semaphore::new(max_pooled))),
            ..Self::new(pool, max_pooled)
        }
    }

    pub(crate) fn from_sentinel(sentinel: Sentinel, max_pooled: usize) -> Self {
        Self::with_backend(Backend::Sentinel(Arc::new(sentinel)), max_pooled)
    }

    fn with_backend(backend: Backend, max_pooled: usize) -> Self {
        Self {
            backend,
            server: "the server".into(),
            max_pooled,
            shared_pool: None,
            open: Arc::default(),
            failures: Arc::default(),
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

    /// Notes that a worker's connection broke.
    fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of open connections of workers.
    pub(crate) fn open_connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
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
