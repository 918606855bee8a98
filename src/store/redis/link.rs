//! A lane's connection, and the pool it is from.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_redis::{Connection, Pool, PoolError};
use redis::{Cmd, RedisError, Value, aio::MultiplexedConnection};

use super::fault;
use crate::error::StoreError;

/// A connection that has been silent for so long may have been closed by the other side without a word.
const STALE: Duration = Duration::from_secs(1);

/// Where connections come from.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) pool: Pool,
    /// How many the lanes may hold of the pool's; more are detached, so that whoever shares the pool isn't left waiting.
    pub(super) share: usize,
    held: Arc<AtomicUsize>,
}

impl Source {
    /// The list that stands under a key.
    pub(super) async fn list(&self, key: &str) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut connection = self.connection().await?;
        let mut range = redis::cmd("LRANGE");
        range.arg(key).arg(0).arg(-1);
        let list = range.query_async(&mut *connection).await;
        list.map_err(|error| fault::of(&error))
    }

    async fn connection(&self) -> Result<Connection, StoreError> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => fault::of(&error),
            error => StoreError::Connection(error.to_string().into()),
        })
    }

    pub(super) fn new(pool: Pool, share: usize) -> Self {
        Self {
            pool,
            share,
            held: Arc::default(),
        }
    }
}

/// A lane's connection.
#[derive(Debug)]
pub(super) struct Link {
    connection: Held,
    used: Instant,
}

enum Held {
    Pooled(Option<Connection>, Arc<AtomicUsize>),
    Detached(MultiplexedConnection),
}

impl Link {
    pub(super) async fn open(source: &Source) -> Result<Self, StoreError> {
        let connection = source.connection().await?;
        let held = &source.held;
        let connection = if held.fetch_add(1, Ordering::Relaxed) < source.share {
            Held::Pooled(Some(connection), held.clone())
        } else {
            held.fetch_sub(1, Ordering::Relaxed);
            Held::Detached(Connection::take(connection))
        };
        Ok(Self {
            connection,
            used: Instant::now(),
        })
    }

    pub(super) async fn query(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        let answer = match &mut self.connection {
            Held::Pooled(Some(connection), _) => cmd.query_async(&mut **connection).await,
            Held::Pooled(None, _) => Ok(Value::Nil),
            Held::Detached(connection) => cmd.query_async(connection).await,
        };
        self.used = Instant::now();
        answer
    }

    pub(super) fn is_stale(&self) -> bool {
        self.used.elapsed() > STALE
    }

    /// Whether the other side is still there.
    pub(super) async fn answers(&mut self) -> bool {
        self.query(&redis::cmd("PING")).await.is_ok()
    }

    /// Closes the connection, so that the pool doesn't hand it out again.
    pub(super) fn discard(mut self) {
        if let Held::Pooled(connection, _) = &mut self.connection {
            drop(connection.take().map(Connection::take));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Self::Pooled(_, held) = self {
            held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pooled(..) => "Pooled",
            Self::Detached(_) => "Detached",
        })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("pool", &self.pool.status())
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}
