//! How the actor calls a server. Tests script it.

use std::{
    future::poll_fn,
    pin::pin,
    task::{Poll, ready},
    time::Duration,
};

use redis::{Cmd, Pipeline, RedisError, Value, aio::MultiplexedConnection};
use tokio::{runtime::Handle, task::spawn_blocking, time::timeout};

use super::server::Server;
use crate::error::StoreError;

/// Connections to servers, and calls on them.
pub(super) trait Wire: Send + Sync + 'static {
    type Connection: Clone + Send + Sync + 'static;

    /// Opens a connection within a time.
    fn connect(
        &self,
        server: &Server,
        within: Duration,
    ) -> impl Future<Output = Result<Self::Connection, StoreError>> + Send + use<Self>;

    /// Sends a command, after `ASKING` if the server is importing the slot of its keys. Dropping the future does not take the command
    /// back.
    fn call(
        &self,
        connection: &Self::Connection,
        cmd: Cmd,
        asking: bool,
    ) -> impl Future<Output = Result<Value, CallError>> + Send + use<Self>;
}

/// Why a call has no reply.
#[derive(Debug)]
pub(super) enum CallError {
    /// The connection was closed before it took the command, which was not sent.
    NotTaken,
    /// An error reply, or a connection that broke.
    Failed(RedisError),
    /// The call was aborted: it had no reply for too long, or its connection was closed.
    Aborted,
}

/// Connections of redis-rs.
#[derive(Debug)]
pub(super) struct RedisWire {
    runtime: Handle,
}

impl RedisWire {
    /// Connections that a runtime drives.
    pub(super) fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl Wire for RedisWire {
    type Connection = MultiplexedConnection;

    /// Connects on a thread of the blocking pool: looking up a name, loading the system's certificates and a handshake take milliseconds of
    /// a thread.
    fn connect(
        &self,
        server: &Server,
        within: Duration,
    ) -> impl Future<Output = Result<Self::Connection, StoreError>> + Send + use<> {
        let (server, runtime) = (server.clone(), self.runtime.clone());
        async move {
            let connect = async move {
                let connected = timeout(within, server.connect()).await;
                connected.unwrap_or(Err(StoreError::timeout().sent(false)))
            };
            let driven = runtime.clone();
            // In a task of its own: `spawn_blocking` panics if no thread can be started.
            let opening = runtime.spawn(async move {
                let opened = spawn_blocking(move || driven.block_on(connect)).await;
                opened.unwrap_or_else(|error| Err(StoreError::connection(error.to_string())))
            });
            opening
                .await
                .unwrap_or_else(|error| Err(StoreError::connection(error.to_string())))
        }
    }

    fn call(
        &self,
        connection: &Self::Connection,
        cmd: Cmd,
        asking: bool,
    ) -> impl Future<Output = Result<Value, CallError>> + Send + use<> {
        let mut connection = connection.clone();
        async move {
            let mut reply = pin!(query(&mut connection, &cmd, asking));
            let mut is_taken = false;
            poll_fn(|cx| {
                let was_taken = std::mem::replace(&mut is_taken, true);
                let reply = ready!(reply.as_mut().poll(cx));
                Poll::Ready(reply.map_err(|error| match error.code() {
                    // redis-rs hands the command to the connection's task at the first poll. An error there means that the task has ended.
                    None if !was_taken => CallError::NotTaken,
                    _ => CallError::Failed(error),
                }))
            })
            .await
        }
    }
}

async fn query(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if !asking {
        return connection.send_packed_command(cmd).await?.extract_error();
    }
    let mut both = Pipeline::with_capacity(2);
    // As one pipeline: no other command gets between.
    both.cmd("ASKING").add_command(cmd.clone());
    let replies = connection.send_packed_commands(&both, 1, 1).await?;
    let reply = replies.into_iter().next().unwrap_or(Value::Nil);
    reply.extract_error()
}
