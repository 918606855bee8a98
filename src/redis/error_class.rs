//! What is done about each error of a server: a table by error code. An error while a connection is opened counts as a failure
//! whatever its code is.

use redis::{ErrorKind, RedisError};

use crate::error::StoreError;

/// What is done about an error, apart from failing the requests and keeping their refunds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorAction {
    /// The batch is sent again: the reply proves that nothing ran.
    pub(crate) resend: Option<Resend>,
    /// The connection is closed.
    pub(crate) reconnect: bool,
    /// It counts as a failure for the circuit breaker.
    pub(crate) counts_as_failure: bool,
    /// The server does not write for now, and responds to all else.
    pub(crate) is_unwritable: bool,
}

/// How a batch is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// With the script's text in place of its hash.
    WithScriptText,
    /// After a pause, until the deadline.
    AfterDelay,
}

/// The requests fail, and nothing else is done.
const REPORT_ONLY: ErrorAction = ErrorAction {
    resend: None,
    reconnect: false,
    counts_as_failure: false,
    is_unwritable: false,
};
const UNWRITABLE: ErrorAction = ErrorAction {
    is_unwritable: true,
    ..REPORT_ONLY
};
const COUNTS_AS_FAILURE: ErrorAction = ErrorAction {
    counts_as_failure: true,
    ..REPORT_ONLY
};
const RECONNECT: ErrorAction = ErrorAction {
    reconnect: true,
    counts_as_failure: true,
    ..REPORT_ONLY
};
/// No connection, a broken one, one without replies, or malformed replies: nothing that follows on it can be trusted.
pub(crate) const CONNECTION_LOST: ErrorAction = RECONNECT;
const RETRY_WITH_TEXT: ErrorAction = ErrorAction {
    resend: Some(Resend::WithScriptText),
    ..REPORT_ONLY
};
const RETRY_LATER: ErrorAction = ErrorAction {
    resend: Some(Resend::AfterDelay),
    ..REPORT_ONLY
};

/// By error code. All others only fail their requests.
const ERROR_ACTIONS: [(&str, ErrorAction); 22] = [
    // The server was restarted, or its scripts were flushed.
    ("NOSCRIPT", RETRY_WITH_TEXT),
    // The keys are migrating between two nodes of a cluster.
    ("TRYAGAIN", RETRY_LATER),
    // A demoted master stays a replica for this connection; its name may resolve to another server by now.
    ("READONLY", RECONNECT),
    ("UNBLOCKED", RECONNECT),
    // A replica without its master, and a server that loads its data: another server may have the name by now.
    ("MASTERDOWN", RECONNECT),
    ("LOADING", RECONNECT),
    // A connection that is not authenticated. Passwords are changed while applications run.
    ("NOAUTH", RECONNECT),
    ("WRONGPASS", RECONNECT),
    // Another script runs for too long. When it ends, the connection is usable again.
    ("BUSY", COUNTS_AS_FAILURE),
    ("UNKILLABLE", COUNTS_AS_FAILURE),
    // No node serves the slot: an election is under way. It concerns slots, and the map is read again.
    ("CLUSTERDOWN", REPORT_ONLY),
    // Nothing can be written, but callers without quota are still rejected, without a write.
    ("OOM", UNWRITABLE),
    ("MISCONF", UNWRITABLE),
    ("NOREPLICAS", UNWRITABLE),
    // A matter of configuration, which fewer calls do not improve.
    ("NOPERM", REPORT_ONLY),
    ("CROSSSLOT", REPORT_ONLY),
    // A cluster's node, used as a single server.
    ("MOVED", REPORT_ONLY),
    ("ASK", REPORT_ONLY),
    // An error of one key only.
    ("WRONGTYPE", REPORT_ONLY),
    ("FOREIGN", REPORT_ONLY),
    ("STALE", REPORT_ONLY),
    // Of a transaction, which the store does not send.
    ("EXECABORT", REPORT_ONLY),
];

/// The action for an error code.
pub(crate) fn classify_code(code: &str) -> ErrorAction {
    let known = ERROR_ACTIONS.iter().find(|(known, _)| *known == code);
    known.map_or(REPORT_ONLY, |(_, action)| *action)
}

/// The action for an error. Without a code it is the connection's: refused, reset, or a truncated reply.
pub(crate) fn classify(error: &RedisError) -> ErrorAction {
    error_text(error).map_or(CONNECTION_LOST, |text| classify_code(read(&text).0))
}

/// The [`StoreError`] for an error of redis-rs.
pub(crate) fn to_store_error(error: &RedisError) -> StoreError {
    match error_text(error) {
        Some(text) => {
            let (code, message) = read(&text);
            StoreError::Server {
                code: code.into(),
                message: message.into(),
            }
        }
        None if error.is_timeout() => StoreError::timeout(),
        // An `AUTH` that failed, of which redis-rs leaves out the server's reply.
        None if error.kind() == ErrorKind::AuthenticationFailed => StoreError::Server {
            code: "WRONGPASS".into(),
            message: error.to_string().into(),
        },
        None => StoreError::connection(error.to_string()),
    }
}

/// The server's text.
fn error_text(error: &RedisError) -> Option<String> {
    let (code, detail) = (error.code()?, error.detail().unwrap_or_default());
    Some(format!("{code} {detail}"))
}

/// The code of an error and the rest of its text. Errors within a script are normalised: before 7.0 they begin with the
/// position in the script, and many have no code. A missing right has the code `ERR` there, or none: it alone is recognised by the
/// server's words, of which there are two.
pub(crate) fn read(text: &str) -> (&str, &str) {
    let mut text = text.trim_end();
    if let Some(rest) = text.strip_prefix("ERR Error running script (call to ") {
        text = rest.split_once("): ").map_or(text, |(_, met)| met);
    }
    // A line of the script; a function of the server's own has line -1.
    let prefixes = ["@user_script:", "=[C]:"];
    while let Some(rest) = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix)) {
        let line = |c: char| c.is_ascii_digit() || " :-".contains(c);
        text = rest.trim_start_matches(line);
    }
    text = text.strip_prefix('-').unwrap_or(text);
    let plain = text.strip_prefix("ERR ").unwrap_or(text);
    if plain.starts_with("ACL failure in script") || plain.starts_with("The user executing") {
        return ("NOPERM", plain);
    }
    match text.split_once(' ') {
        // Met by a script before 7.0: an unknown command, wrong arguments.
        Some((word, _)) if !is_code(word) => ("ERR", text),
        Some(found) => found,
        None => (text, ""),
    }
}

fn is_code(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_and_the_message_of_an_error_are_found_for_every_server_version() {
        let script = "ERR Error running script (call to f_0a): @user_script:10: @user_script: 10: ";
        for (text, code, message) in [
            ("OOM command not allowed", "OOM", "command not allowed"),
            (
                "@user_script: 94: -READONLY You can't.\r\n",
                "READONLY",
                "You can't.",
            ),
            (
                "@user_script: 9: WRONGTYPE Operation",
                "WRONGTYPE",
                "Operation",
            ),
            (&format!("{script}-MISCONF No."), "MISCONF", "No."),
            (
                &format!("{script}Unknown Redis command called from Lua script"),
                "ERR",
                "Unknown Redis command called from Lua script",
            ),
            ("ERR no such command", "ERR", "no such command"),
            ("LOADING", "LOADING", ""),
        ] {
            assert_eq!(read(text), (code, message), "{text}");
        }
        // A missing right, whose code the server leaves out within a script.
        for (text, code) in [
            (
                "=[C]: -1: The user executing the script can't access at least one of the keys",
                "NOPERM",
            ),
            (
                "@user_script: 94: The user executing the script can't run this command or subcommand",
                "NOPERM",
            ),
            (
                "ERR ACL failure in script: User a has no permissions to run the 'set' command",
                "NOPERM",
            ),
            ("ERR max number of clients reached", "ERR"),
        ] {
            let (found, message) = read(text);
            assert_eq!(found, code, "{text}");
            assert!(text.ends_with(message), "{text}: {message}");
        }
    }

    #[test]
    fn only_what_has_not_run_is_sent_again_and_an_unknown_error_only_fails_its_requests() {
        let codes: Vec<_> = ERROR_ACTIONS.iter().map(|(code, _)| *code).collect();
        for code in &codes {
            let retried = classify_code(code).resend.is_some();
            assert_eq!(retried, ["NOSCRIPT", "TRYAGAIN"].contains(code), "{code}");
            let listed = codes.iter().filter(|other| *other == code);
            assert_eq!(listed.count(), 1, "{code}");
        }
        assert_eq!(classify_code("ERR"), REPORT_ONLY);
        assert_eq!(classify_code(""), REPORT_ONLY);
    }

    #[test]
    fn a_connection_that_breaks_is_dropped_and_counts() {
        let broken = |kind| RedisError::from(std::io::Error::from(kind));
        let cut = broken(std::io::ErrorKind::ConnectionReset);
        assert_eq!(classify(&cut), CONNECTION_LOST);
        assert!(matches!(
            to_store_error(&cut),
            StoreError::Connection { .. }
        ));
        let late = broken(std::io::ErrorKind::TimedOut);
        assert_eq!(classify(&late), CONNECTION_LOST);
        assert!(matches!(to_store_error(&late), StoreError::Timeout { .. }));
    }
}
