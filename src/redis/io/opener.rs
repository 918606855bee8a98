//! How a connection is opened and set up.
//!
//! Of the commands that redis-rs sends on a new connection, `AUTH` fails with [`ErrorKind::AuthenticationFailed`], `HELLO`
//! with the server's error, and `CLIENT SETINFO` may fail. `SELECT` fails with the server's text, but without its code, which
//! distinguishes a missing right from a server that is busy. So the store selects the database itself.
//!
//! [`ErrorKind::AuthenticationFailed`]: redis::ErrorKind::AuthenticationFailed

use deadpool::managed::Manager as _;
use deadpool_redis::Manager;
use redis::{AsyncConnectionConfig, ConnectionInfo, RedisError, Value, aio::MultiplexedConnection};

use crate::redis::error_class;

/// Opens connections to one address, with a database.
pub(crate) struct Opener {
    manager: Manager,
    database: i64,
}

impl Opener {
    pub(crate) fn new(
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let settings = info.redis_settings().clone();
        let database = settings.db();
        let info = info.set_redis_settings(settings.set_db(0));
        Ok(Self {
            manager: Manager::new_with_config(info, config)?,
            database,
        })
    }

    pub(super) async fn open(&self) -> Result<MultiplexedConnection, RedisError> {
        open(&self.manager, self.database).await
    }
}

/// Opens a connection by the manager of an application's pool, which selects its database itself. If the server refuses that, the error
/// has the code `ERR`.
pub(super) async fn open_by_manager(
    manager: &Manager,
) -> Result<MultiplexedConnection, RedisError> {
    open(manager, 0).await
}

async fn open(manager: &Manager, database: i64) -> Result<MultiplexedConnection, RedisError> {
    let mut connection = manager.create().await?;
    select(&mut connection, database).await?;
    Ok(connection)
}

/// Selects a database, and fails if the server requires a password that the connection did not bring.
///
/// A server reads ten arguments at most of a client that is not logged in, and replies to longer commands without the code
/// `NOAUTH`. So a short command is the first one, also where no database is selected: `TIME`, which scripts need in any case.
async fn select(connection: &mut MultiplexedConnection, database: i64) -> Result<(), RedisError> {
    if database != 0 {
        return redis::cmd("SELECT")
            .arg(database)
            .query_async(connection)
            .await;
    }
    let time: Result<Value, _> = redis::cmd("TIME").query_async(connection).await;
    match time {
        Err(error) if error_class::classify(&error).reconnect => Err(error),
        // Any other error reply is an answer, too, such as that of a sentinel, which has no such command.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use redis::{ErrorKind, IntoConnectionInfo};
    use testkit::{Reply, Server};

    use super::*;

    /// Why no connection to this URL can be set up.
    async fn failure(url: &str) -> RedisError {
        let info = url.into_connection_info().expect("an address");
        let opener = Opener::new(info, AsyncConnectionConfig::new()).expect("an address");
        opener.open().await.expect_err("it is refused")
    }

    #[tokio::test]
    async fn an_error_keeps_the_code_of_the_server() {
        let (server, with_password) = (Server::start(), Server::builder().password("secret"));
        let with_password = with_password.start();
        server.acl("gate", "secret", "~* +@all -select");
        let no_password = with_password.addr();
        for (url, code) in [
            (format!("{}/1", server.url_as("gate", "secret")), "NOPERM"),
            (format!("{}/99", server.url()), "ERR"),
            (format!("redis://{no_password}"), "NOAUTH"),
            (format!("redis://{no_password}/1"), "NOAUTH"),
            (format!("redis://{no_password}/1?protocol=resp3"), "NOAUTH"),
        ] {
            let error = failure(&url).await;
            assert_eq!(error.code(), Some(code), "{url}: {error}");
        }
        let wrong = failure(&server.url_as("gate", "wrong")).await;
        assert_eq!(wrong.kind(), ErrorKind::AuthenticationFailed);
    }

    #[tokio::test]
    async fn a_server_that_runs_a_long_script_is_busy_and_not_misconfigured() {
        let server = Server::builder().arg("lua-time-limit", "1").start();
        let mut other = server.connect().expect("a connection");
        let script = thread::spawn(move || other.call(&["EVAL", "while true do end", "0"]));
        while !matches!(server.command(&["GET", "key"]), Reply::Error(_)) {
            tokio::task::yield_now().await;
        }
        let busy = failure(&format!("{}/1", server.url())).await;
        assert_eq!(busy.code(), Some("BUSY"), "{busy}");
        server.command(&["SCRIPT", "KILL"]).ok();
        let killed = script.join().expect("it ends");
        assert!(matches!(killed, Ok(Reply::Error(_))));
    }

    #[tokio::test]
    async fn the_database_of_the_address_is_selected() {
        let server = Server::start();
        for database in [0, 3] {
            let url = format!("{}/{database}", server.url());
            let info = url.into_connection_info().expect("an address");
            let opener = Opener::new(info, AsyncConnectionConfig::new()).expect("an address");
            let mut connection = opener.open().await.expect("a connection");
            let client = redis::cmd("CLIENT").arg("INFO").to_owned();
            let client: String = client.query_async(&mut connection).await.expect("a reply");
            assert!(client.contains(&format!(" db={database} ")), "{client}");
        }
    }

    /// Scripts need the command, so its absence is found by the policies that are tried.
    #[tokio::test]
    async fn a_server_that_refuses_the_first_command_is_connected() {
        let server = Server::start();
        server.acl("gate", "secret", "~* +@all -time");
        let info = server.url_as("gate", "secret").into_connection_info();
        let opener = Opener::new(info.expect("an address"), AsyncConnectionConfig::new());
        opener
            .expect("an address")
            .open()
            .await
            .expect("a connection");
    }
}
