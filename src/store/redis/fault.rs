//! What each error of a server means to a lane: the one table of them all.

use redis::RedisError;

use crate::error::StoreError;

/// What a lane does about an error, other than to tell those who asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fault {
    /// It asks again, on the same connection: the reply proves that nothing ran.
    pub(super) again: Option<Again>,
    /// It drops the connection: another one would do better.
    pub(super) severs: bool,
    /// It counts for the [breaker](crate::guard::breaker): nothing can be counted there now, whatever is asked.
    pub(super) counts: bool,
}

/// How it asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// With the script's text in place of its name.
    Whole,
    /// In a moment, until the deadline.
    Soon,
}

/// Those who asked are told, and that is all.
const PLAIN: Fault = Fault {
    again: None,
    severs: false,
    counts: false,
};
const COUNTS: Fault = Fault {
    counts: true,
    ..PLAIN
};
const SEVERS: Fault = Fault {
    severs: true,
    counts: true,
    ..PLAIN
};
/// No connection, a broken one, one that is silent, or one whose replies aren't: whatever follows on it can't be trusted.
pub(super) const BROKEN: Fault = SEVERS;
const WHOLE: Fault = Fault {
    again: Some(Again::Whole),
    ..PLAIN
};
const SOON: Fault = Fault {
    again: Some(Again::Soon),
    ..PLAIN
};

/// By the error's code. What isn't here is plain.
const TABLE: [(&str, Fault); 22] = [
    // The server was restarted, or its scripts were flushed.
    ("NOSCRIPT", WHOLE),
    // The keys are on their way from one node of a cluster to another.
    ("TRYAGAIN", SOON),
    // A master that was demoted stays a replica for this connection; behind its name there may be another by now.
    ("READONLY", SEVERS),
    ("UNBLOCKED", SEVERS),
    // A replica without its master, and a server that reads its data: as above.
    ("MASTERDOWN", SEVERS),
    ("LOADING", SEVERS),
    // A connection that isn't let in. Passwords are changed while applications run.
    ("NOAUTH", SEVERS),
    ("WRONGPASS", SEVERS),
    // Somebody's script runs for too long. Nothing else runs until it ends, and then all is well on this connection.
    ("BUSY", COUNTS),
    ("UNKILLABLE", COUNTS),
    // No node serves the slot: an election is under way.
    ("CLUSTERDOWN", COUNTS),
    // Nothing can be written, but who has used up his quota is refused all the same, without a write.
    ("OOM", PLAIN),
    ("MISCONF", PLAIN),
    ("NOREPLICAS", PLAIN),
    // A matter of configuration, which asking less doesn't mend.
    ("NOPERM", PLAIN),
    ("CROSSSLOT", PLAIN),
    // A cluster's node, asked as if it stood alone.
    ("MOVED", PLAIN),
    ("ASK", PLAIN),
    // The matter of one key, among many that are well.
    ("WRONGTYPE", PLAIN),
    ("FOREIGN", PLAIN),
    ("STALE", PLAIN),
    // Of a transaction, which lanes don't send.
    ("EXECABORT", PLAIN),
];

/// What an error of this code means.
pub(super) fn meant_by_code(code: &str) -> Fault {
    let known = TABLE.iter().find(|(known, _)| *known == code);
    known.map_or(PLAIN, |(_, fault)| *fault)
}

/// What an error means. Without a code it is the connection's: refused, reset, or cut amid a reply.
pub(super) fn meant_by(error: &RedisError) -> Fault {
    error.code().map_or(BROKEN, meant_by_code)
}

/// The store error that stands for `error`.
pub(super) fn of(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => StoreError::Server {
            code: code.into(),
            message: error.detail().unwrap_or_default().into(),
        },
        None if error.is_timeout() => StoreError::Timeout,
        None => StoreError::Connection(error.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_stands_in_the_table_once() {
        let mut codes: Vec<_> = TABLE.iter().map(|(code, _)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), TABLE.len());
    }

    #[test]
    fn what_is_not_known_is_told_and_no_more() {
        assert_eq!(meant_by_code("ERR"), PLAIN);
        assert_eq!(meant_by_code(""), PLAIN);
    }

    #[test]
    fn nothing_is_asked_again_that_may_have_run() {
        let again = TABLE.iter().filter(|(_, fault)| fault.again.is_some());
        let again: Vec<_> = again.map(|(code, _)| *code).collect();
        assert_eq!(again, ["NOSCRIPT", "TRYAGAIN"]);
    }

    #[test]
    fn a_connection_that_breaks_is_dropped_and_counts() {
        let cut = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(meant_by(&cut), BROKEN);
        assert!(matches!(of(&cut), StoreError::Connection(_)));
        let late = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!(meant_by(&late), BROKEN);
        assert!(matches!(of(&late), StoreError::Timeout));
    }
}
