//! What becomes of the connections of a store when the server reports an error.

use crate::faults::support::*;

/// A connection of a store, by the number that the server gave it.
pub(crate) struct Connection(i64);

impl Connection {
    /// The only one besides the test's own. The server may not have noticed yet that an earlier one is closed.
    pub(crate) async fn only(server: &Server) -> Self {
        let own = server.command(&["CLIENT", "ID"]).int();
        let mut others = Vec::new();
        until("there is one other connection", async || {
            others = connections(server);
            others.retain(|number| *number != own);
            others.len() == 1
        })
        .await;
        Self(others[0])
    }

    #[track_caller]
    pub(crate) fn is_kept(&self, server: &Server) {
        let open = connections(server);
        assert!(open.contains(&self.0), "{} is not in {open:?}", self.0);
    }

    pub(crate) async fn is_dropped(&self, server: &Server) {
        let is_closed = async || !connections(server).contains(&self.0);
        until("the connection is closed", is_closed).await;
    }
}

/// The numbers of all connections.
fn connections(server: &Server) -> Vec<i64> {
    let list = server.command(&["CLIENT", "LIST"]).text();
    let numbers = list.lines().map(|line| {
        let number = line.split(['=', ' ']).nth(1);
        number.and_then(|number| number.parse().ok())
    });
    numbers.map(|number| number.expect("a number")).collect()
}

/// Each request opens another one, which may bring the right password by then.
#[tokio::test]
async fn an_unauthenticated_connection_is_dropped() {
    let server = Server::start();
    // The test's own connection is open before, and stays so.
    server.command(&["PING"]).ok();
    let store = builder(server.url()).max_overrides(0).no_circuit_breaker();
    let store = store.built();
    let limiter = rejecting(store, 10);
    order(&server, &["CONFIG", "SET", "requirepass", "secret"]);
    let opened = || {
        let opened = server.info("stats", "total_connections_received");
        opened.and_then(|opened| opened.parse::<u64>().ok())
    };
    let before = opened().expect("a number");
    for connections in 1..=3 {
        let error = store_error(&limiter.check(KEY).await);
        assert_eq!(error.code(), "noauth");
        assert_eq!(opened(), Some(before + connections));
    }
}
