//! The permissions of a user that counts.

use testkit::Server;

/// Those that `docs/operations.md` lists. Servers before 7.0 lack one of the commands.
pub fn of_a_limiter(server: &Server) -> String {
    let rights = "~tg:* +evalsha +eval +ping +get +set +incrby +del +time +pttl +pexpiretime +pexpireat +hget +hgetall +hset +hdel +hlen";
    match server.version() {
        (..7, _) => rights.replace(" +pexpiretime", ""),
        _ => rights.to_owned(),
    }
}
