//! What differs from run to run and machine to machine, and what documents print in its place.

use regex::Regex;

/// A pattern, and what documents print in its place. Ports have a list in each [`Session`](crate::printed::session::Session), and times need
/// none: programs run on a clock that stands still.
const STAND_INS: [(&str, &str); 5] = [
    // The process of the admin API, and its machine: in JSON, and in the table of `tollgate watch`.
    (
        r#""pid":\d+,"host":"[^"]*""#,
        r#""pid":4711,"host":"api-1""#,
    ),
    (r"process \d+ on \S+", "process 4711 on api-1"),
    // How long calls of the store take: nothing, on a clock that stands still.
    (r"p50 \d+ µs, p99 \d+ µs", "p50 310 µs, p99 1210 µs"),
    // Prometheus has a clock of its own.
    (r"@\[\d+(\.\d+)?\]", "@[1800000000.000]"),
    // Tools print colours and line breaks of terminals.
    ("\r|\u{1b}\\[[0-9;]*m", ""),
];

/// The text as documents have it.
pub(crate) fn put_in(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, stand_in) in STAND_INS {
        let pattern = Regex::new(pattern).expect("a pattern");
        text = pattern.replace_all(&text, stand_in).into_owned();
    }
    text
}
