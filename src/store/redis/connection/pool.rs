//! Connections that are taken from a pool.

use deadpool_redis::{Connection, Pool, PoolError};
use redis::{
    Cmd, RedisError, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

use crate::{error::StoreError, store::redis::error_class};

/// Takes a connection from a pool.
pub(super) async fn checkout(pool: &Pool) -> Result<Connection, StoreError> {
    pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) => error_class::to_store_error(&error),
        error => StoreError::Connection(error.to_string().into()),
    })
}

/// A connection for one command, or for several. Without a reply it is not returned to its pool: it may be broken, and otherwise its
/// next user would wait for both replies.
pub(crate) struct PooledConnection(Option<Connection>);

impl PooledConnection {
    pub(super) fn new(connection: Connection) -> Self {
        Self(Some(connection))
    }

    pub(crate) async fn query(self, cmd: &Cmd) -> Result<Value, RedisError> {
        self.send(cmd, false).await
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

    /// Sends it to a node of a cluster that is importing the slot of its key (`ASKING`).
    pub(crate) async fn query_with_asking(self, cmd: &Cmd) -> Result<Value, RedisError> {
        self.send(cmd, true).await
    }

    async fn send(mut self, cmd: &Cmd, asking: bool) -> Result<Value, RedisError> {
        let connection = self.connection()?;
        let reply = match asking {
            false => cmd.query_async(connection).await,
            true => query_with_asking(connection, cmd).await,
        };
        let reconnect = |error| error_class::classify(error).reconnect;
        if !reply.as_ref().is_err_and(reconnect) {
            drop(self.0.take());
        }
        reply
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        drop(self.0.take().map(Connection::take));
    }
}

/// Sends a command after `ASKING`.
pub(super) async fn query_with_asking(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
) -> Result<Value, RedisError> {
    let mut both = redis::Pipeline::with_capacity(2);
    // As one pipeline: no command of another batch gets between.
    both.cmd("ASKING").add_command(cmd.clone());
    let replies = connection.req_packed_commands(&both, 1, 1).await?;
    let reply = replies.into_iter().next().unwrap_or(Value::Nil);
    reply.extract_error()
}
