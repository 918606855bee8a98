//! What can go wrong: in a configuration, and in a store.

use std::{error, fmt, sync::Arc, time::Duration};

/// A mistake in a configuration, found when a [`Limiter`](crate::Limiter), a layer or a store is built.
///
/// It says which policy it is about (if one), which value is wrong, and what would be valid.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Policy, Quota};
///
/// let error = Limiter::builder()
///     .policy(Policy::new("burst", Quota::requests(10).per(Duration::ZERO)))
///     .build()
///     .unwrap_err();
/// assert_eq!(error.policy(), Some("burst"));
/// assert_eq!(
///     error.to_string(),
///     r#"policy "burst": a period of 0ns; expected a period of at least 1 µs"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    policy: Option<String>,
    value: String,
    expected: String,
}

impl ConfigError {
    pub(crate) fn new(value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            policy: None,
            value: value.into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn of(policy: &str, unfit: InvalidValue) -> Self {
        Self {
            policy: Some(policy.to_owned()),
            value: unfit.value,
            expected: unfit.expected,
        }
    }

    /// A mistake at a place that isn't a policy.
    pub(crate) fn at(place: &str, unfit: InvalidValue) -> Self {
        Self::new(format!("{place}{}", unfit.value), unfit.expected)
    }

    /// The name of the policy that the mistake is in; `None` if it is in the store or in the limiter as a whole.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// What is wrong.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What would be valid.
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy {policy:?}: ")?;
        }
        write!(f, "{}; expected {}", self.value, self.expected)
    }
}

impl error::Error for ConfigError {}

/// Why a [`Strategy`](crate::strategy::Strategy) or a [`Store`](crate::store::Store) can't count a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    value: String,
    expected: String,
}

impl InvalidValue {
    /// `value` is what can't be counted, `expected` says what could be.
    pub fn new(value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            value: value.into(),
            expected: expected.into(),
        }
    }
}

/// A policy was named that the limiter does not have.
///
/// ```
/// use tollgate::{CallError, Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("tokens", Quota::requests(5).per_minute()))
///     .build()?;
/// let error = limiter.peek([("tokns", "alice")]).await.unwrap_err();
/// assert!(matches!(&error, CallError::UnknownPolicy(unknown) if unknown.name() == "tokns"));
/// assert_eq!(error.to_string(), r#"no policy "tokns"; expected one of ["tokens"]"#);
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(Arc<(String, Vec<String>)>);

impl UnknownPolicy {
    pub(crate) fn new(name: &str, known: impl IntoIterator<Item = String>) -> Self {
        Self(Arc::new((name.to_owned(), known.into_iter().collect())))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.0
    }

    /// The names of the limiter's policies.
    pub fn known(&self) -> &[String] {
        &self.0.1
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no policy {:?}; expected one of {:?}",
            self.name(),
            self.known()
        )
    }
}

impl error::Error for UnknownPolicy {}

/// Why a call that is no request's check, such as [`Limiter::reset`](crate::Limiter::reset), was not carried out.
///
/// As a response it tells a client that the service is unavailable (503), and no more. To operators show the error's text, which
/// names what failed and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The store could not answer. The operation may still be done after a [timeout](StoreError::Timeout), and is not done
    /// in process in place of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The call names a policy that the limiter does not have; the store was not called.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
    /// The named policy takes its quota, its cost or its conditions from requests, and the call has no request: give it one by
    /// [`Check::parts`](crate::Check::parts), or settings of its own. The store was not called.
    #[error(
        "policy {policy:?} takes its quota, cost or conditions from a request: call `parts`, or name the policy and set \
         `quota_for` and `cost_for`"
    )]
    #[non_exhaustive]
    PartsRequired {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The named policy's strategy can't credit units: see [`PolicyHandle::credit`](crate::PolicyHandle::credit).
    #[error(
        "policy {policy:?} can't be credited: its strategy keeps each charge by itself; `reset` gives all back"
    )]
    #[non_exhaustive]
    CreditUnsupported {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The call blocks or unblocks keys, and none of the policies that it is about is a [ban](crate::Ban). Nothing was asked of
    /// the store.
    #[error(
        "none of the policies {policies:?} is a ban: block and unblock need one, such as Policy::block_list(\"blocked\")"
    )]
    #[non_exhaustive]
    NotABan {
        /// The policies' names.
        policies: Vec<Arc<str>>,
    },
}

/// Why a store failed. A rejection is a result, and no failure.
///
/// An outage ends by itself, and requests are answered as [`OnStoreError`](crate::OnStoreError) says. A
/// [misconfiguration](Self::is_misconfiguration) lasts until it is mended, and is answered as
/// [`OnMisconfiguration`](crate::OnMisconfiguration) says.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the timeout. The request may still have been charged.
    #[error("the store did not answer within the timeout")]
    Timeout,
    /// No connection could be had, or it broke while an answer was awaited. It has the client's error as text, so that no type
    /// of a dependency is in this API.
    #[error("no connection to the store: {0}")]
    Connection(Arc<str>),
    /// The circuit breaker is open: recent calls failed, none is made, and the store is probed in the background.
    #[error("circuit breaker is open after failed calls to the store; next probe in {retry_after:?}{}", after(.cause.as_deref()))]
    #[non_exhaustive]
    CircuitOpen {
        /// How long until the next probe of the store, a few milliseconds at first. For logs, and not for clients.
        retry_after: Duration,
        /// The failure of the last call or probe, if it is known.
        #[source]
        cause: Option<Arc<StoreError>>,
    },
    /// The server answered with an error; nothing was charged.
    #[error("the store answered with an error: {code}: {message}")]
    #[non_exhaustive]
    Server {
        /// The error's code, such as `OOM` or `READONLY`.
        code: Arc<str>,
        /// The server's words.
        message: Arc<str>,
    },
    /// The key holds data that this crate did not write. It was left as it is, and nothing was charged.
    #[error("the store's key {key:?} holds no state of this policy: {message}")]
    #[non_exhaustive]
    CorruptKey {
        /// The key in the store.
        key: Arc<str>,
        /// What is wrong with it.
        message: Arc<str>,
    },
    /// An earlier charge, refund or settlement of the same request was sent and not answered, so that what the request is
    /// charged is not known. Nothing was asked of the store. See [`PolicyAdmission::settle`](crate::PolicyAdmission::settle).
    #[error(
        "what a request is charged under policy {policy:?} is not known: an earlier charge or refund was sent and not answered"
    )]
    #[non_exhaustive]
    Unconfirmed {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The call was made outside of a tokio runtime, or in one that is ending.
    #[error("no tokio runtime: {0}")]
    NoRuntime(&'static str),
    /// The store or the strategy can't do this operation.
    #[error("the store can't do that: {0}")]
    Unsupported(&'static str),
}

impl StoreError {
    /// An error that a store's server answered with, such as `OOM`: for a [`Store`](crate::store::Store) of one's own.
    pub fn server(code: impl Into<Arc<str>>, message: impl Into<Arc<str>>) -> Self {
        let (code, message) = (code.into(), message.into());
        Self::Server { code, message }
    }

    /// A key of the store that holds something else than a state of its policy: for a [`Store`](crate::store::Store) of one's
    /// own.
    pub fn corrupt_key(key: impl Into<Arc<str>>, message: impl Into<Arc<str>>) -> Self {
        let (key, message) = (key.into(), message.into());
        Self::CorruptKey { key, message }
    }

    /// A call that was not made, because the last ones failed, the last of them by `cause`: for a
    /// [`Store`](crate::store::Store) of one's own that has a circuit breaker.
    pub fn circuit_open(retry_after: Duration, cause: Option<Self>) -> Self {
        Self::CircuitOpen {
            retry_after,
            cause: cause.map(Arc::new),
        }
    }

    /// Whether the store, its server or its use is misconfigured: a right or a command is missing, a password is wrong, a
    /// server is older than Redis 6.2, a cluster is used as a single server, something else stands under a policy's key,
    /// there is no tokio runtime. Unlike an outage, that doesn't end until it is mended.
    ///
    /// The cause of an open circuit breaker counts. [`Limiter::health_check`](crate::Limiter::health_check) finds most of
    /// these before the first request.
    pub fn is_misconfiguration(&self) -> bool {
        self.remedy().is_some()
    }

    /// What to do about a [misconfiguration](Self::is_misconfiguration); `None` for an outage.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Timeout | Self::Connection(_) | Self::Unconfirmed { .. } => None,
            Self::CircuitOpen { cause, .. } => cause.as_deref()?.remedy(),
            Self::Server { code, message } => remedy(code, message),
            Self::CorruptKey { .. } => Some(
                "delete the key; if another program writes it, set a prefix of your own by RedisStoreBuilder::prefix",
            ),
            Self::NoRuntime(_) => Some("call the limiter from a task of a tokio runtime"),
            Self::Unsupported(_) => Some("use a store and strategies that can do it"),
        }
    }

    /// Whether it proves that nothing was charged or refunded.
    pub(crate) fn had_no_effect(&self) -> bool {
        match self {
            Self::Timeout | Self::Connection(_) => false,
            // An answer that can't be read may be that of a script that ran.
            Self::Server { code, .. } => &**code != "GARBLED",
            Self::CircuitOpen { .. }
            | Self::Unconfirmed { .. }
            | Self::CorruptKey { .. }
            | Self::NoRuntime(_)
            | Self::Unsupported(_) => true,
        }
    }
}

const RIGHTS: &str = "grant the user the commands and keys that Limiter::health_check names";
const PASSWORD: &str = "correct the user and the password of the connection";
const CLUSTER: &str = "the server is a node of a cluster: use RedisStore::cluster";
const NO_CLUSTER: &str = "the server is not a node of a cluster: use RedisStore::open";
const MASTER: &str = "correct the name of the master, as the sentinels know it";
const DATABASE: &str = "correct the database number of the connection";
const COMMANDS: &str =
    "use Redis 6.2 or newer, and enable the commands that the operations page lists";

/// What to do about an error that a server answers until its configuration is changed.
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
        "ERR"
            if says("unknown command")
                || says("Unknown Redis command")
                || says("nknown subcommand") =>
        {
            Some(COMMANDS)
        }
        // Scripts are the same on every server, so it is the server that doesn't know an option.
        "ERR" if says("syntax error") || says("wrong number of arg") => Some(COMMANDS),
        _ => None,
    }
}

fn after(cause: Option<&StoreError>) -> String {
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
        let misconfigured = [
            (
                "NOPERM",
                "this user has no permissions to run the 'evalsha' command",
                RIGHTS,
            ),
            ("NOAUTH", "Authentication required.", PASSWORD),
            ("WRONGPASS", "invalid username-password pair", PASSWORD),
            (
                "CROSSSLOT",
                "Keys in request don't hash to the same slot",
                CLUSTER,
            ),
            ("MOVED", "1234 127.0.0.1:7001", CLUSTER),
            ("NOMASTER", "no sentinel knows it", MASTER),
            ("ERR", "SELECT is not allowed in cluster mode", CLUSTER),
            (
                "ERR",
                "Script attempted to access a non local key in a cluster node",
                CLUSTER,
            ),
            (
                "ERR",
                "This instance has cluster support disabled",
                NO_CLUSTER,
            ),
            ("ERR", "DB index is out of range", DATABASE),
            (
                "ERR",
                "unknown command 'EVALSHA', with args beginning with:",
                COMMANDS,
            ),
            ("ERR", "Unknown Redis command called from script", COMMANDS),
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
        assert!(!StoreError::Timeout.is_misconfiguration());
        let corrupt = StoreError::corrupt_key("tg:f1:p:alice", "no number");
        assert!(corrupt.is_misconfiguration() && corrupt.to_string().contains("tg:f1:p:alice"));
    }

    #[test]
    fn an_open_circuit_breaker_is_classified_by_the_error_that_opened_it() {
        let open = |cause| StoreError::circuit_open(Duration::from_millis(50), cause);
        assert!(!open(None).is_misconfiguration());
        assert!(!open(Some(StoreError::Timeout)).is_misconfiguration());
        let wrong = open(Some(server("WRONGPASS", "invalid password")));
        assert_eq!(wrong.remedy(), Some(PASSWORD));
        let source = error::Error::source(&wrong).expect("a cause").to_string();
        assert!(source.contains("invalid password") && wrong.to_string().ends_with(&source));
    }
}
