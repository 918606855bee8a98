//! What tests ask of a Redis server: the permissions of a user that counts, and whether a client waits.

use testkit::Server;

/// Those that `docs/operations.md` lists. Servers before 7.0 lack one of the commands.
pub fn of_a_limiter(server: &Server) -> String {
    let rights = "~tg:* +evalsha +eval +ping +get +set +incrby +del +time +pttl +pexpiretime +pexpireat +hget +hgetall +hset +hdel +hlen";
    match server.version() {
        (..7, _) => rights.replace(" +pexpiretime", ""),
        _ => rights.to_owned(),
    }
}

/// Whether a client of the server waits for the end of its pause.
pub fn a_client_waits(server: &Server) -> bool {
    let clients = server.command(&["CLIENT", "LIST"]).text();
    let mut flags = clients
        .split(' ')
        .filter_map(|part| part.strip_prefix("flags="));
    flags.any(|flags| flags.contains('b'))
}
