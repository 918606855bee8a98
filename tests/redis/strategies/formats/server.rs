//! The server of a scene: its clock, and its keys as text.

use std::fmt::Write as _;

use testkit::{Clock, Cluster};
use tollgate::redis::RedisStoreBuilder;
use tollgate_tests::{prelude::*, world::START};

/// What the number of a holder is replaced by: as long, and of the same letters.
const UNIQUE: &str = "unique-id-";

/// The length of such a number.
const UNIQUE_CHARS: usize = 22;

/// An empty server on a clock that only moves when it is set.
pub(crate) struct Backend {
    node: Node,
    clock: Clock,
    /// The unique numbers that were seen, and what they are replaced by.
    unique: HashMap<String, String>,
}

enum Node {
    Single(Server),
    /// Of one master: every key is there.
    Cluster(Cluster),
}

impl Backend {
    pub(crate) fn start(cluster: bool) -> Self {
        let clock = Clock::at(if cluster { 0 } else { START });
        let node = match cluster {
            false => Node::Single(Server::builder().clock(&clock).start()),
            true => Node::Cluster(Cluster::start_with(1, 0, |node| node.clock(&clock))),
        };
        clock.set(START);
        Self {
            node,
            clock,
            unique: HashMap::new(),
        }
    }

    /// The store of a new process.
    pub(crate) fn store(&self) -> RedisStoreBuilder {
        let store = RedisStore::builder().timeout(TEST_TIMEOUT);
        match &self.node {
            Node::Single(server) => store.url(server.url()),
            Node::Cluster(cluster) => store.cluster(cluster.urls()),
        }
    }

    pub(crate) fn server(&self) -> &Server {
        match &self.node {
            Node::Single(server) => server,
            Node::Cluster(cluster) => &cluster.nodes()[0],
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Every key in order, a line each: name, type, expiry in milliseconds since 1970, and value.
    pub(crate) fn dump(&mut self) -> Vec<String> {
        let names = self.server().keys();
        names.iter().map(|name| self.dump_key(name)).collect()
    }

    fn dump_key(&mut self, name: &str) -> String {
        let server = self.server();
        let run = |command: &[&str]| server.command(command).ok();
        let kind = run(&["TYPE", name]).text();
        let values = match &*kind {
            "string" => vec![run(&["GET", name])],
            "list" => run(&["LRANGE", name, "0", "-1"]).list(),
            "zset" => run(&["ZRANGE", name, "0", "-1", "WITHSCORES"]).list(),
            other => panic!("{name} is a {other}"),
        };
        let expires_at = server.expires_at(name);
        let mut line = format!("key {} {kind} {expires_at}", escape(name));
        let values = values.into_iter().map(|value| self.renamed(value.text()));
        let mut values: Vec<String> = values.collect();
        if kind == "zset" {
            // Members of one score are ordered by their bytes, which are other ones before they are renamed.
            let mut pairs: Vec<_> = values.chunks(2).map(|pair| (&pair[1], &pair[0])).collect();
            pairs.sort_by_key(|(score, member)| (score.parse::<i64>().ok(), *member));
            values = pairs
                .into_iter()
                .flat_map(|(score, member)| [member.clone(), score.clone()])
                .collect();
        }
        for value in values {
            write!(line, " {}", escape(&value)).expect("a string grows");
        }
        line
    }

    /// Writes the keys of such lines, and sets the clock to the time of their dump.
    pub(crate) fn load<'a>(&mut self, micros: u64, lines: impl IntoIterator<Item = &'a str>) {
        self.clock.set(micros);
        for line in lines {
            let words: Vec<String> = line.split(' ').map(unescape).collect();
            let [_, name, kind, expires_at, values @ ..] = &words[..] else {
                panic!("not a key: {line}");
            };
            let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
            let write = match &**kind {
                "string" => "SET",
                "list" => "RPUSH",
                "zset" => "ZADD",
                other => panic!("{name} is a {other}"),
            };
            // ZADD takes the score first.
            if write == "ZADD" {
                values.chunks_mut(2).for_each(<[_]>::reverse);
            }
            let command = [&[write, name], &values[..]].concat();
            self.server().command(&command).ok();
            let expiry = ["PEXPIREAT", name, expires_at];
            assert_eq!(self.server().command(&expiry).int(), 1, "{line}");
        }
    }

    /// What the clock shows, in microseconds since 1970.
    pub(crate) fn micros(&self) -> u64 {
        self.clock.micros()
    }

    /// The value, with a unique number replaced by its index among those that were seen.
    fn renamed(&mut self, value: String) -> String {
        let number = value.trim_end_matches('=');
        let rest = &value[number.len()..];
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if number.len() != UNIQUE_CHARS || !number.bytes().all(plain) {
            return value;
        }
        let next = self.unique.len() + 1;
        let width = UNIQUE_CHARS - UNIQUE.len();
        let seen = self.unique.entry(number.to_owned());
        let shown = seen.or_insert_with(|| match number.starts_with(UNIQUE) {
            true => number.to_owned(),
            false => format!("{UNIQUE}{next:0width$}"),
        });
        format!("{shown}{rest}")
    }
}

/// The text as one word: bytes that do not print, blanks and backslashes are written as `\x` and two digits.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'\\' => escaped.push(char::from(byte)),
            _ => write!(escaped, "\\x{byte:02x}").expect("a string grows"),
        }
    }
    escaped
}

fn unescape(word: &str) -> String {
    let mut parts = word.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(digits, 16).expect("two hexadecimal digits"));
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).expect("text")
}
