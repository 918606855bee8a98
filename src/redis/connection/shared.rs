//! A worker's connection: opened by the first of its batches, shared by all, replaced when it is broken.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_redis::Connection;
use redis::{Value, aio::MultiplexedConnection};
use tokio::sync::{Mutex, OwnedSemaphorePermit};

use super::{ConnectionSource, pool::PooledConnection};
use crate::{error::StoreError, redis::error_class::classify};

/// A connection that was idle for this long may have been closed by the other side unnoticed.
const MAX_IDLE: Duration = Duration::from_secs(1);

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
    /// `None` if it is not one of a pool. It is closed with this, and not returned: it may be broken.
    _in_pool: Option<(PooledConnection, OwnedSemaphorePermit)>,
    /// Set by a batch that found it broken.
    broken: Arc<AtomicBool>,
    used: Instant,
    /// The failures of the server's connections when it was opened or checked.
    failures: usize,
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
        let failures = self.source.failures.load(Ordering::Relaxed);
        // What broke another connection may have broken this one.
        let is_stale =
            |open: &mut OpenConnection| open.used.elapsed() > MAX_IDLE || open.failures != failures;
        if let Some(mut stale) = open.take_if(is_stale) {
            // If the check is cancelled, the connection counts as broken.
            if Box::pin(responds(&mut stale.connection)).await {
                stale.failures = failures;
                *open = Some(stale);
            } else {
                self.source.note_failure();
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

/// Whether the server answers on it. A server that runs another client's script answers by an error, for one.
async fn responds(connection: &mut MultiplexedConnection) -> bool {
    let ping: Result<Value, _> = redis::cmd("PING").query_async(connection).await;
    ping.err().is_none_or(|error| !classify(&error).reconnect)
}

impl ConnectionRef {
    /// The server's name.
    pub(crate) fn server(&self) -> &Arc<str> {
        self.shared.source.server()
    }

    /// The connection, and what closes it meanwhile. A command that is handed over at the moment at which it closes may get neither a
    /// reply nor an error, since the channel to the client's driver keeps it (tokio issue 7714): its caller must have a deadline.
    pub(crate) fn split(&mut self) -> (&mut MultiplexedConnection, Closer<'_>) {
        let closer = Closer {
            shared: &self.shared,
            broken: &self.broken,
        };
        (&mut self.connection, closer)
    }

    /// Closes the connection, as [`Closer::close`] does.
    pub(crate) fn close(&mut self) {
        self.split().1.close();
    }
}

/// Closes a connection.
pub(crate) struct Closer<'a> {
    shared: &'a SharedConnection,
    broken: &'a AtomicBool,
}

impl Closer<'_> {
    /// Closes the connection once the commands in flight have ended, if it is still the current one: now, or when the next batch
    /// would use it. Another task may be opening a new one, which takes up to its timeout; the batches behind this one must not
    /// wait for that.
    pub(crate) fn close(&self) {
        self.broken.store(true, Ordering::Release);
        self.shared.source.note_failure();
        if let Ok(mut open) = self.shared.open.try_lock() {
            drop(open.take_if(|open| open.broken.load(Ordering::Acquire)));
        }
    }
}

impl OpenConnection {
    async fn open(source: &ConnectionSource) -> Result<Self, StoreError> {
        let failures = source.failures.load(Ordering::Relaxed);
        let (connection, in_pool) = match &source.shared_pool {
            // One of the pool may be driven by another runtime, which may end or stand still.
            None => (source.connect().await?, None),
            Some(permits) => {
                let connection = source.connection().await?;
                match permits.clone().try_acquire_owned() {
                    Ok(permit) => {
                        let shared = MultiplexedConnection::clone(&connection);
                        (shared, Some((PooledConnection::new(connection), permit)))
                    }
                    Err(_) => (Connection::take(connection), None),
                }
            }
        };
        Ok(Self {
            connection,
            _in_pool: in_pool,
            broken: Arc::default(),
            used: Instant::now(),
            failures,
            _counted: OpenCount::new(&source.open),
        })
    }
}
