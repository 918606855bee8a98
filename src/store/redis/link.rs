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
use tokio::sync::Mutex;

use super::fault;
use crate::error::StoreError;

/// A connection on which nothing was sent for so long may have been closed by the other side without a word.
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

    /// The number that stands under a key; zero if there is none.
    pub(super) async fn number(&self, key: &str) -> Result<u64, StoreError> {
        let mut connection = self.connection().await?;
        let mut get = redis::cmd("GET");
        let number: Result<Option<u64>, _> = get.arg(key).query_async(&mut *connection).await;
        Ok(number.map_err(|error| fault::of(&error))?.unwrap_or(0))
    }

    pub(super) async fn connection(&self) -> Result<Connection, StoreError> {
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

/// The connection of a lane, which its trips share. It is opened by the first of them.
#[derive(Debug, Default)]
pub(super) struct Road(Mutex<Option<Link>>);

/// What a trip holds of the connection it is sent on.
pub(super) struct Way {
    connection: MultiplexedConnection,
    opened: Instant,
}

#[derive(Debug)]
struct Link {
    connection: MultiplexedConnection,
    /// None if it was detached from the pool.
    _place: Option<Place>,
    opened: Instant,
    used: Instant,
}

/// A connection's place in the pool.
struct Place {
    connection: Option<Connection>,
    held: Arc<AtomicUsize>,
}

impl Road {
    /// The connection, opened if there is none, or the one there was doesn't answer any more.
    pub(super) async fn way(&self, source: &Source) -> Result<Way, StoreError> {
        let mut link = self.0.lock().await;
        if let Some(stale) = link.take_if(|link| link.used.elapsed() > STALE) {
            // Should nobody wait for the answer any more, it is as good as none.
            if stale.way().query(&redis::cmd("PING")).await.is_ok() {
                *link = Some(stale);
            }
        }
        let link = match &mut *link {
            Some(link) => link,
            none => none.insert(Link::open(source).await?),
        };
        link.used = Instant::now();
        Ok(link.way())
    }

    /// Closes the connection that a trip was sent on, if it is still the one in use.
    pub(super) async fn close(&self, way: &Way) {
        let mut link = self.0.lock().await;
        drop(link.take_if(|link| link.opened == way.opened));
    }
}

impl Way {
    pub(super) async fn query(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        cmd.query_async(&mut self.connection).await
    }
}

impl Link {
    async fn open(source: &Source) -> Result<Self, StoreError> {
        let connection = source.connection().await?;
        let held = &source.held;
        let (connection, place) = if held.fetch_add(1, Ordering::Relaxed) < source.share {
            let shared = MultiplexedConnection::clone(&connection);
            let place = Place {
                connection: Some(connection),
                held: held.clone(),
            };
            (shared, Some(place))
        } else {
            held.fetch_sub(1, Ordering::Relaxed);
            (Connection::take(connection), None)
        };
        let now = Instant::now();
        Ok(Self {
            connection,
            _place: place,
            opened: now,
            used: now,
        })
    }

    fn way(&self) -> Way {
        Way {
            connection: self.connection.clone(),
            opened: self.opened,
        }
    }
}

/// The connection is closed, so that the pool doesn't hand it out again: it may be dead.
impl Drop for Place {
    fn drop(&mut self) {
        drop(self.connection.take().map(Connection::take));
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
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
