//! The error of a store, and which errors are misconfigurations.

use std::{fmt, sync::Arc, time::Duration};

/// The error of a store. A rejected request is a result, not an error.
///
/// Requests that meet an outage, which ends by itself, are handled as [`OnStoreError`](crate::OnStoreError) says; those that
/// meet a [misconfiguration](Self::is_misconfiguration), which lasts until it is corrected, as
/// [`OnMisconfiguration`](crate::limiter::OnMisconfiguration) says.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store did not respond within the timeout.
    #[error("the store did not respond within the timeout")]
    Timeout {
        /// Whether the operation was sent, and so [may have run](Self::may_have_run).
        may_have_run: bool,
    },
    /// A connection could not be opened, or broke while a response was awaited.
    #[error("connection to the store failed: {}", Escaped(.message))]
    Connection {
        /// The text of the client's error.
        message: Arc<str>,
        /// Whether the operation was sent, and so [may have run](Self::may_have_run).
        may_have_run: bool,
    },
    /// The circuit breaker is open after failed calls: the store was not called, and is probed in the background.
    #[error("circuit breaker is open after failed calls to the store; next probe in {retry_after:?}{}", last_failure(.cause.as_deref()))]
    #[non_exhaustive]
    CircuitOpen {
        /// The time until the next probe of the store, a second at most. For logs, not for clients.
        retry_after: Duration,
        /// The error of the last call or probe, if it is known.
        #[source]
        cause: Option<Arc<StoreError>>,
    },
    /// The request was not sent: 65,536 others wait. It does not count for the circuit breaker.
    #[error("too many requests wait to be sent to the store")]
    Overloaded,
    /// The server responded with an error, and the operation was not done. After `GARBLED`, a response that could not be decoded, it
    /// may have been done.
    #[error("the store responded with an error: {}: {}", Escaped(.code), Escaped(.message))]
    #[non_exhaustive]
    Server {
        /// The error's code, such as `OOM` or `READONLY`.
        code: Arc<str>,
        /// The server's message.
        message: Arc<str>,
    },
    /// The key holds data that this crate did not write. It was not changed, and nothing was charged.
    #[error("the store's key {key:?} does not hold the state of this policy: {}", Escaped(.message))]
    #[non_exhaustive]
    CorruptKey {
        /// The key in the store.
        key: Arc<str>,
        /// What is wrong with it.
        message: Arc<str>,
    },
    /// A wait was made outside of a tokio runtime with timers, or the thread of the store on Redis could not be started.
    #[error("no suitable tokio runtime: {0}")]
    NoRuntime(&'static str),
    /// The in-process store holds `max_keys` keys and can evict none for a new one: the policy's keys are blocked by hand or hold
    /// permits, and no other policy has more than its share. Nothing was charged. See [`MemoryStore`](crate::MemoryStore).
    #[error(
        "the in-process store is full: no room for another key of policy {policy:?}; raise MemoryStoreBuilder::max_keys"
    )]
    #[non_exhaustive]
    Full {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The store or the strategy does not support the operation. Nothing was charged.
    #[error("not supported by the store: {0}")]
    Unsupported(&'static str),
}

/// A server's text in one line, with its control characters escaped: in a log they could forge lines, and in a terminal move
/// the cursor.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_control = |char: char| char.is_control() || matches!(char, '\u{2028}' | '\u{2029}');
        for char in self.0.chars() {
            if is_control(char) {
                write!(f, "{}", char.escape_default())?
            } else {
                write!(f, "{char}")?
            }
        }
        Ok(())
    }
}

/// How many of [`StoreError::CODES`] are of other errors than a server's.
const OWN_CODES: usize = 9;

impl StoreError {
    /// All [codes](Self::code).
    pub const CODES: &'static [&'static str] = &[
        "timeout",
        "connection",
        "circuit_open",
        "overloaded",
        "corrupt_key",
        "no_runtime",
        "full",
        "unsupported",
        "server",
        "ask",
        "busy",
        "clusterdown",
        "crossslot",
        "err",
        "garbled",
        "loading",
        "masterdown",
        "misconf",
        "moved",
        "noauth",
        "nomaster",
        "noperm",
        "noreplicas",
        "noscript",
        "oom",
        "readonly",
        "tryagain",
        "unkillable",
        "wrongpass",
        "wrongtype",
        "execabort",
    ];

    /// A [`Server`](Self::Server) error, such as `OOM`: for a [`Store`](crate::store::Store) of your own.
    pub fn server(code: impl Into<Arc<str>>, message: impl Into<Arc<str>>) -> Self {
        let (code, message) = (code.into(), message.into());
        Self::Server { code, message }
    }

    /// A [`CorruptKey`](Self::CorruptKey) error: for a [`Store`](crate::store::Store) of your own.
    pub fn corrupt_key(key: impl Into<Arc<str>>, message: impl Into<Arc<str>>) -> Self {
        let (key, message) = (key.into(), message.into());
        Self::CorruptKey { key, message }
    }

    /// A [`CircuitOpen`](Self::CircuitOpen) error, for a [`Store`](crate::store::Store) of your own with a circuit breaker.
    /// `retry_after` is the time until the next probe, `cause` the last failure.
    pub fn circuit_open(retry_after: Duration, cause: Option<Self>) -> Self {
        Self::CircuitOpen {
            retry_after,
            cause: cause.map(Arc::new),
        }
    }

    /// A [`Timeout`](Self::Timeout) of an operation that may have run.
    pub const fn timeout() -> Self {
        Self::Timeout { may_have_run: true }
    }

    /// A [`Connection`](Self::Connection) error of an operation that may have run.
    pub fn connection(message: impl Into<Arc<str>>) -> Self {
        Self::Connection {
            message: message.into(),
            may_have_run: true,
        }
    }

    /// The same error of an operation that was sent, or was not.
    #[cfg(feature = "redis")]
    pub(crate) fn sent(mut self, is_sent: bool) -> Self {
        if let Self::Timeout { may_have_run } | Self::Connection { may_have_run, .. } = &mut self {
            *may_have_run = is_sent;
        }
        self
    }

    /// Whether the operation may have been done, or may still be.
    ///
    /// After `false` nothing was done, and the call can be repeated. After `true` it counts as done: a
    /// [settlement](crate::limiter::PolicyAdmission::settle), reset or block can be repeated; a charge, refund or credit should not,
    /// since it could be made twice.
    ///
    /// ```
    /// use tollgate::StoreError;
    ///
    /// assert!(StoreError::timeout().may_have_run());
    /// assert!(!StoreError::server("OOM", "command not allowed").may_have_run());
    /// ```
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Timeout { may_have_run } | Self::Connection { may_have_run, .. } => *may_have_run,
            // A response that can't be decoded may be that of a script that ran.
            Self::Server { code, .. } => &**code == "GARBLED",
            Self::CircuitOpen { .. }
            | Self::Overloaded
            | Self::CorruptKey { .. }
            | Self::NoRuntime(_)
            | Self::Full { .. }
            | Self::Unsupported(_) => false,
        }
    }

    /// Whether the store, its server or its use is misconfigured: a permission or a command is missing, a password is wrong, a
    /// server is older than Redis 6.2, a cluster is used as a single server, foreign data is stored under a policy's key, or
    /// there is no suitable tokio runtime. Unlike an outage, a misconfiguration lasts until it is corrected.
    ///
    /// For [`CircuitOpen`](Self::CircuitOpen), whether its cause is one.
    /// [`Limiter::health_check`](crate::Limiter::health_check) finds most misconfigurations before the first request.
    pub fn is_misconfiguration(&self) -> bool {
        self.remedy().is_some()
    }

    /// What to do about a [misconfiguration](Self::is_misconfiguration); `None` for an outage.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Timeout { .. }
            | Self::Connection { .. }
            | Self::Overloaded
            | Self::Full { .. } => None,
            Self::CircuitOpen { cause, .. } => cause.as_deref()?.remedy(),
            Self::Server { code, message } => remedy(code, message),
            Self::CorruptKey { .. } => Some(
                "delete the key; if another program writes it, set a prefix of your own by RedisStoreBuilder::prefix",
            ),
            Self::NoRuntime(_) => Some(
                "wait in a task of a tokio runtime with timers (`enable_all`), or raise the limits of threads and open files of this process",
            ),
            Self::Unsupported(_) => Some("use a store and strategies that can do it"),
        }
    }

    /// The error's code, one of [`CODES`](Self::CODES), for metrics: `timeout`, `connection`, `circuit_open` and so on; of a
    /// [`Server`](Self::Server) error, the server's own code in lower case, such as `oom` or `readonly`, or `server` if it is not
    /// among them.
    ///
    /// ```
    /// use tollgate::StoreError;
    ///
    /// assert_eq!(StoreError::timeout().code(), "timeout");
    /// assert_eq!(StoreError::server("OOM", "command not allowed").code(), "oom");
    /// assert_eq!(StoreError::server("NEWCODE", "").code(), "server");
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "timeout",
            Self::Connection { .. } => "connection",
            Self::CircuitOpen { .. } => "circuit_open",
            Self::Overloaded => "overloaded",
            Self::Server { code, .. } => {
                let mut known = Self::CODES.iter().skip(OWN_CODES);
                let known = known.find(|known| known.eq_ignore_ascii_case(code));
                known.copied().unwrap_or("server")
            }
            Self::CorruptKey { .. } => "corrupt_key",
            Self::NoRuntime(_) => "no_runtime",
            Self::Full { .. } => "full",
            Self::Unsupported(_) => "unsupported",
        }
    }
}

const RIGHTS: &str = "grant the user the commands and keys that the operations page lists";
const PASSWORD: &str = "correct the user and the password of the connection";
const CLUSTER: &str = "the server is a node of a cluster: use RedisStore::cluster";
const NO_CLUSTER: &str = "the server is not a node of a cluster: use RedisStore::open";
const MASTER: &str = "correct the name of the master, as the sentinels know it";
const DATABASE: &str = "correct the database number of the connection";
const COMMANDS: &str =
    "use Redis 6.2 or newer, and enable the commands that the operations page lists";

/// What to do about an error that a server returns until its configuration is corrected; `None` for other errors.
fn remedy(code: &str, message: &str) -> Option<&'static str> {
    let says = |text: &str| message.contains(text);
    match code {
        "NOPERM" => Some(RIGHTS),
        "NOAUTH" | "WRONGPASS" => Some(PASSWORD),
        "CROSSSLOT" | "MOVED" | "ASK" => Some(CLUSTER),
        "NOMASTER" => Some(MASTER),
        "ERR" if says("cluster mode") || says("cluster node") => Some(CLUSTER),
        "ERR" if says("cluster support disabled") => Some(NO_CLUSTER),
        "ERR" if says("DB index") => Some(DATABASE),
        // Of commands and subcommands. Within a script the server may put its own name before the word.
        "ERR" if says("nknown ") && says("command") => Some(COMMANDS),
        // Scripts are the same on every server, so it is the server that doesn't know an option.
        "ERR" if says("syntax error") || says("wrong number of arg") => Some(COMMANDS),
        _ => None,
    }
}

/// The end of the message of an open circuit breaker.
fn last_failure(cause: Option<&StoreError>) -> String {
    cause.map_or_else(String::new, |cause| format!("; last failure: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str, message: &str) -> StoreError {
        StoreError::server(code, message)
    }

    #[test]
    fn misconfigurations_are_distinguished_from_outages() {
        #[rustfmt::skip]
        let misconfigured = [
            ("NOPERM", "this user has no permissions to run the 'evalsha' command", RIGHTS),
            ("NOAUTH", "Authentication required.", PASSWORD),
            ("WRONGPASS", "invalid username-password pair", PASSWORD),
            ("CROSSSLOT", "Keys in request don't hash to the same slot", CLUSTER),
            ("MOVED", "1234 127.0.0.1:7001", CLUSTER),
            ("NOMASTER", "no sentinel knows it", MASTER),
            ("ERR", "SELECT is not allowed in cluster mode", CLUSTER),
            ("ERR", "Script attempted to access a non local key in a cluster node", CLUSTER),
            ("ERR", "This instance has cluster support disabled", NO_CLUSTER),
            ("ERR", "DB index is out of range", DATABASE),
            ("ERR", "unknown command 'EVALSHA', with args beginning with:", COMMANDS),
            ("ERR", "Unknown Redis command called from script", COMMANDS),
            ("ERR", "Unknown Redict command called from script", COMMANDS),
            ("ERR", "Unknown command called from script", COMMANDS),
            // Redis 6.0, of PXAT.
            ("ERR", "syntax error", COMMANDS),
        ];
        for (code, message, remedy) in misconfigured {
            let error = server(code, message);
            assert_eq!(error.remedy(), Some(remedy), "{error}");
            assert!(error.is_misconfiguration());
        }
        for (code, message) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("READONLY", "You can't write against a read only replica."),
            ("LOADING", "Redis is loading the dataset in memory"),
            ("MISCONF", "Redis is configured to save RDB snapshots"),
            ("CLUSTERDOWN", "The cluster is down"),
            ("BUSY", "Redis is busy running a script."),
            ("ERR", "max number of clients reached"),
        ] {
            assert!(!server(code, message).is_misconfiguration(), "{code}");
        }
        assert!(!StoreError::timeout().is_misconfiguration());
        let corrupt = StoreError::corrupt_key("tg:f1:p:alice", "no number");
        assert!(corrupt.is_misconfiguration() && corrupt.to_string().contains("tg:f1:p:alice"));
    }

    #[test]
    fn control_characters_of_a_server_are_escaped() {
        let text: &str = "a\x1b[2J\x07b\r\nc\u{9b}d é";
        let escaped = "a\\u{1b}[2J\\u{7}b\\r\\nc\\u{9b}d é";
        let cause = server("ERR\n", text);
        for error in [
            StoreError::connection(text),
            StoreError::corrupt_key(text, text),
            StoreError::circuit_open(Duration::ZERO, Some(cause.clone())),
            cause,
        ] {
            let error = error.to_string();
            assert!(error.contains(escaped), "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn an_open_circuit_breaker_is_classified_by_the_error_that_opened_it() {
        let open = |cause| StoreError::circuit_open(Duration::from_millis(50), cause);
        assert!(!open(None).is_misconfiguration());
        assert!(!open(Some(StoreError::timeout())).is_misconfiguration());
        let wrong = open(Some(server("WRONGPASS", "invalid password")));
        assert_eq!(wrong.remedy(), Some(PASSWORD));
        let source = std::error::Error::source(&wrong)
            .expect("a cause")
            .to_string();
        assert!(source.contains("invalid password") && wrong.to_string().ends_with(&source));
    }
}
