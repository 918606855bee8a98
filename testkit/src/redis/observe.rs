//! What a server holds and did, and which users may use it.

use std::collections::BTreeSet;

use crate::{Reply, Server};

impl Server {
    /// The URL for the default user, with its password if it has one.
    pub fn url(&self) -> String {
        match &self.setup.password {
            None => self.url_with("", ""),
            Some(password) => self.url_with("", password),
        }
    }

    /// The URL for a user made with [`acl`](Self::acl).
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_with(user, password)
    }

    fn url_with(&self, user: &str, password: &str) -> String {
        let (user, password) = (escaped(user), escaped(password));
        match self.socket() {
            Some(path) => {
                let query = match (user.as_str(), password.as_str()) {
                    ("", "") => String::new(),
                    ("", _) => format!("?pass={password}"),
                    _ => format!("?user={user}&pass={password}"),
                };
                format!("redis+unix://{}{query}", path.display())
            }
            None if password.is_empty() => format!("redis://127.0.0.1:{}", self.port()),
            None => format!("redis://{user}:{password}@127.0.0.1:{}", self.port()),
        }
    }

    /// Makes or remakes a user: `rules` such as `~* +@all -incrby` start from none.
    ///
    /// # Panics
    /// If the server rejects the rules.
    #[track_caller]
    pub fn acl(&self, user: &str, password: &str, rules: &str) {
        let password = format!(">{password}");
        let mut args = vec!["ACL", "SETUSER", user, "reset", "on", &password];
        args.extend(rules.split_whitespace());
        self.command(&args).ok();
    }

    /// A field of a section of `INFO`: `info("replication", "role")`.
    #[track_caller]
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let text = self.command(&["INFO", section]).text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.map(str::to_owned)
    }

    /// Which version of Redis it is, or for others which one they stand in for, such as `(7, 2)`.
    #[track_caller]
    pub fn version(&self) -> (u32, u32) {
        let version = self.info("server", "redis_version");
        let version = version.expect("INFO server has redis_version");
        let mut parts = version.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
            _ => panic!("{version} is no version"),
        }
    }

    /// When a key ends, in milliseconds since 1970: `PEXPIRETIME`, also of servers before 7.0, which have no such command.
    #[track_caller]
    pub fn expires_at(&self, key: &str) -> i64 {
        if self.version() >= (7, 0) {
            return self.command(&["PEXPIRETIME", key]).int();
        }
        // Known if the clock did not move meanwhile.
        const EXPIRY_SCRIPT: &str = "local function ms()
            local time = redis.call('TIME')
            return time[1] * 1000 + math.floor(time[2] / 1000)
        end
        local before, ttl, after
        repeat
            before, ttl, after = ms(), redis.call('PTTL', KEYS[1]), ms()
        until before == after
        return ttl < 0 and ttl or after + ttl";
        self.command(&["EVAL", EXPIRY_SCRIPT, "1", key]).int()
    }

    /// How often a command ran since [`reset_stats`](Self::reset_stats), by clients
    /// and in scripts; subcommands are named like `config|get`, from 7.0 on. A run that failed
    /// counts, such as `EVALSHA` of an unknown script; a command that was rejected
    /// before it ran, because rights or memory were missing, does not.
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.info(
            "commandstats",
            &format!("cmdstat_{}", command.to_lowercase()),
        );
        let calls = stats.as_deref().map(|stats| {
            let calls = stats
                .split(',')
                .find_map(|part| part.strip_prefix("calls="));
            calls
                .and_then(|calls| calls.parse().ok())
                .unwrap_or_else(|| panic!("no calls in {stats:?}"))
        });
        calls.unwrap_or(0)
    }

    /// Sets the counts of [`calls`](Self::calls) and
    /// [`total_commands`](Self::total_commands) to zero.
    #[track_caller]
    pub fn reset_stats(&self) {
        self.command(&["CONFIG", "RESETSTAT"]).ok();
    }

    /// How many commands ran in all since [`reset_stats`](Self::reset_stats): those
    /// of clients, those in scripts, and the helper's own. The reset itself counts,
    /// this query only from the next one on: right after a reset this is 1.
    #[track_caller]
    pub fn total_commands(&self) -> u64 {
        let total = self.info("stats", "total_commands_processed");
        total
            .and_then(|total| total.parse().ok())
            .expect("INFO stats has total_commands_processed")
    }

    /// The names of all keys that have not expired, in order.
    #[track_caller]
    pub fn keys(&self) -> Vec<String> {
        let mut keys = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut page = self.command(&["SCAN", &cursor, "COUNT", "1000"]).list();
            let names = page.pop().expect("SCAN answers a cursor and names").list();
            cursor = page.pop().expect("SCAN answers a cursor and names").text();
            keys.extend(names.into_iter().map(Reply::text));
            if cursor == "0" {
                return keys.into_iter().collect();
            }
        }
    }

    /// The name of the one key that there is.
    ///
    /// # Panics
    /// If there is none, or more than one.
    #[track_caller]
    pub fn only_key(&self) -> String {
        let keys = self.keys();
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys.concat()
    }

    /// The keys that never expire.
    #[track_caller]
    pub fn immortal_keys(&self) -> Vec<String> {
        let mut keys = self.keys();
        keys.retain(|key| self.command(&["PTTL", key]).int() == -1);
        keys
    }

    /// Removes all keys. Loaded scripts stay.
    #[track_caller]
    pub fn flush(&self) {
        self.command(&["FLUSHALL"]).ok();
    }
}

/// Any byte that has a meaning in a URL is escaped.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(byte.into())
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}
