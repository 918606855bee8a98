//! Connections that are taken from a pool.

use std::fmt;

use deadpool::managed::Manager;
use deadpool_redis::{Connection, Pool, PoolError};
use redis::{
    Cmd, RedisError, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

use crate::{error::StoreError, redis::error_class};

/// Takes a connection from a pool.
pub(super) async fn checkout(pool: &Pool) -> Result<Connection, StoreError> {
    pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) => error_class::to_store_error(&error),
        error => StoreError::connection(error.to_string()),
    })
}

/// Opens a connection with the settings of a pool, which does not count it.
pub(super) async fn connect(pool: &Pool) -> Result<MultiplexedConnection, StoreError> {
    let connection = pool.manager().create().await;
    connection.map_err(|error| error_class::to_store_error(&error))
}

/// A connection for one command, or for several. Without a reply it is not returned to its pool: it may be broken, and otherwise its
/// next user would wait for both replies.
pub(crate) struct PooledConnection(Option<Connection>);

impl PooledConnection {
    pub(super) fn new(connection: Connection) -> Self {
        Self(Some(connection))
    }

    /// Sends a command, after `ASKING` if the node is importing the slot of its key.
    pub(crate) async fn query(mut self, cmd: &Cmd, asking: bool) -> Result<Value, RedisError> {
        let reply = query(self.connection()?, cmd, asking).await;
        let reconnect = |error| error_class::classify(error).reconnect;
        if !reply.as_ref().is_err_and(reconnect) {
            self.put_back();
        }
        reply
    }

    /// Sends a command, and keeps the connection for the next one. It is closed unless it is [put back](Self::put_back).
    pub(crate) async fn query_next(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        cmd.query_async(self.connection()?).await
    }

    /// Returns it to its pool.
    pub(crate) fn put_back(mut self) {
        drop(self.0.take());
    }

    fn connection(&mut self) -> Result<&mut MultiplexedConnection, RedisError> {
        let not_connected =
            || RedisError::from(std::io::Error::from(std::io::ErrorKind::NotConnected));
        self.0.as_deref_mut().ok_or_else(not_connected)
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        drop(self.0.take().map(Connection::take));
    }
}

impl fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledConnection").finish_non_exhaustive()
    }
}

/// Sends a command, after `ASKING` if the node is importing the slot of its keys.
pub(crate) async fn query(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if !asking {
        return cmd.query_async(connection).await;
    }
    let mut both = redis::Pipeline::with_capacity(2);
    // As one pipeline: no command of another batch gets between.
    both.cmd("ASKING").add_command(cmd.clone());
    let replies = connection.req_packed_commands(&both, 1, 1).await?;
    let reply = replies.into_iter().next().unwrap_or(Value::Nil);
    reply.extract_error()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use deadpool_redis::Manager;
    use redis::cmd;
    use testkit::{Proxy, Server};
    use tokio::time::timeout;

    use super::*;
    use crate::redis::connection::ConnectionSource;

    /// A pool of one connection.
    fn source(addr: impl fmt::Display) -> (ConnectionSource, Pool) {
        // Without the client's own timeouts: the machine may be busy.
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let manager = Manager::new_with_config(format!("redis://{addr}"), config);
        let pool = Pool::builder(manager.expect("an address")).max_size(1);
        let pool = pool.build().expect("a pool");
        (ConnectionSource::new(pool.clone(), 1), pool)
    }

    /// The id of the next connection.
    async fn next_id(source: &ConnectionSource) -> Value {
        let connection = source.checkout().await.expect("a connection");
        let id = connection.query(cmd("CLIENT").arg("ID"), false).await;
        id.expect("a number")
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
            let cancelled = timeout(Duration::from_millis(50), connection.query(&ping, asking));
            assert!(cancelled.await.is_err());
            assert_eq!(pool.status().size, 0);
            proxy.pass();
            assert_ne!(next_id(&source).await, before);
        }
        // Nor is an idle one reused, since it may have been closed.
        drop(source.checkout().await.expect("a connection"));
        assert_eq!(pool.status().size, 0);
    }
}
