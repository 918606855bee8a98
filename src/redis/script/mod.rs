//! The script that executes a batch: `main.lua` with the strategies in use in its slots.
//!
//! `main.lua` is the whole control flow. It hands each segment of the batch to the fast path of its strategy, if there is
//! one (`gcra_fast.lua`), and the entries that it leaves to the general path (`general.lua`), which makes the functions of the
//! strategies in use, and those of `operations.lua` where a segment needs them. A file that goes into a slot runs as part of
//! the file with the slot: its `-- luacheck:` line lists the locals of the other files that it uses.
//!
//! # What is sent
//!
//! `EVALSHA sha numkeys key … args`.
//!
//! The keys are those of each entry in turn, one per policy.
//!
//! `args` are MessagePack values, one after the other, since a list costs the script more to read. `main.lua` unpacks them
//! into the table `args`; places in it count from 1.
//!
//! 1. 0, whose byte is NUL: a server that has no `EVALSHA` quotes the arguments in its error up to there. What follows is not
//!    UTF-8, and redis-rs closes a connection on which such an error arrives.
//! 2. The place where the segments begin.
//! 3. The number of this call, with which its reply begins.
//! 4. Each policy of the batch once:
//!    - the number of its strategy in this script;
//!    - 1 if the caller is recorded with each charge, else 0;
//!    - how many numbers of its snapshot are replied;
//!    - how many parameters it has, and the parameters. If there are more than 24: 0, and a list of them.
//! 5. Segments of entries under the same policies at the same costs. An entry is one or several equal requests; its part for
//!    one policy is a counter op.
//!    - The operation: 1 acquire, 2 adjust, 3 peek, 4 reset, 5 renew.
//!    - How many entries there are, and how many policies.
//!    - For each policy: its place, the units, which are those that one request costs, and the mode. To adjust: 0 charges the
//!      units, 1 refunds them. To acquire: 0 charges what is admitted; 1 only checks that there are enough units; 2 charges rejected
//!      requests too, into debt; 3 the same without debt; 4 counts the requests that the other policies reject. A shadow, which
//!      rejects nothing, adds 8.
//!    - 1 if each entry begins with the number of requests that it stands for, else 0: each stands for one.
//!    - A list of what the entries have of their own, or 0 if they have nothing. Of each entry: that number; for each policy
//!      whose units are refunded a receipt, which is when it was charged, in µs since the epoch, its window (nil for the current one),
//!      and how many units are left of it; and for each policy that records callers, the caller of each request, at most as many
//!      as the quota has units.
//!
//! # What is replied
//!
//! One MessagePack list: the number of the call, so that a reply that a proxy repeats decides no other call's requests; the
//! server's time in µs since the epoch; then for each entry
//!
//! - how many of its requests were admitted (1 for other operations), and for each policy the units that moved, unless
//!   that follows from the number admitted (any counter of an acquisition but a shadow's), and its snapshot;
//! - or -1 and an error, if it failed. The others are executed nevertheless.
//!
//! # An example
//!
//! The second request of a client to `examples/quickstart.rs`, as `redis-cli MONITOR` shows it, and what the script does:
//!
//! ```text
//! "EVALSHA" "b388e90167dcf1c167eda51d05138b498cf9857e" "1" "tg:g3:burst:127.0.0.1"
//!   "\x00\xce\x00\x00\x00\x0b\x03\x01\x00\x01\x03\n\xce\x011-\x00\xce\x0b\xeb\xc2\x00\x01\x01\x01\x04\x01\x00\x00\x00"
//! [lua] "TIME"
//! [lua] "INCRBY" "tg:g3:burst:127.0.0.1" "20000000"
//! ```
//!
//! | place | bytes | value |
//! |---|---|---|
//! | 1 | `\x00` | 0 |
//! | 2 | `\xce\x00\x00\x00\x0b` | the segments begin at place 11 |
//! | 3 | `\x03` | the third call of this process, after that without and that with the script's text |
//! | 4 | `\x01` | policy `burst`: strategy 1, `Gcra` |
//! | 5 | `\x00` | records no callers |
//! | 6 | `\x01` | one number of its snapshot is replied |
//! | 7 | `\x03` | three parameters |
//! | 8 | `\n` | a burst of 10 |
//! | 9 | `\xce\x011-\x00` | an emission interval of 20,000,000 x 50 ns: 1 s |
//! | 10 | `\xce\x0b\xeb\xc2\x00` | a tolerance of 200,000,000 x 50 ns: 10 s |
//! | 11 | `\x01` | a segment: acquire |
//! | 12 | `\x01` | one entry |
//! | 13 | `\x01` | under one policy: |
//! | 14 | `\x04` | the one at place 4 |
//! | 15 | `\x01` | for 1 unit a request |
//! | 16 | `\x00` | that charges what is admitted |
//! | 17 | `\x00` | each entry is one request |
//! | 18 | `\x00` | and has nothing of its own |
//!
//! Sent again when all units are back, it replies `\x94\x03\xcf\x00\x06\x60\xd8\xcd\xc6[\x11\x01\xce\x011-\x00`: a list of
//! four, which are the number of the call, 1,795,334,141,795,089 µs (the server's time), 1 admitted, and a theoretical arrival
//! time that lies 20,000,000 x 50 ns ahead.

use std::sync::{Arc, LazyLock};

use crate::strategy;

pub(crate) mod msgpack;

const MAIN: &str = include_str!("main.lua");
const GENERAL: &str = include_str!("general.lua");
const OPERATIONS: &str = include_str!("operations.lua");

/// A script, for the strategies in use.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    /// The hash by which `EVALSHA` names it.
    pub(super) sha: String,
}

/// The strategies in use, and the script made of them.
#[derive(Debug)]
pub(super) struct ScriptRegistry {
    strategies: Vec<StrategyScript>,
    current: Arc<Script>,
}

impl ScriptRegistry {
    pub(super) fn new() -> Self {
        // Each reload of a configuration file builds stores, to find their mistakes.
        static WITHOUT_STRATEGIES: LazyLock<Arc<Script>> =
            LazyLock::new(|| Arc::new(Script::of(&[])));
        Self {
            strategies: Vec::new(),
            current: WITHOUT_STRATEGIES.clone(),
        }
    }

    /// The number of a strategy in the script, from one. A new strategy makes a new script.
    pub(super) fn number(&mut self, strategy: StrategyScript) -> usize {
        if let Some(index) = self.strategies.iter().position(|known| *known == strategy) {
            return index + 1;
        }
        self.strategies.push(strategy);
        self.current = Arc::new(Script::of(&self.strategies));
        self.strategies.len()
    }

    pub(super) fn current(&self) -> Arc<Script> {
        self.current.clone()
    }
}

/// What goes into the script of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StrategyScript {
    source: &'static str,
    fast_path: Option<&'static str>,
}

impl From<&strategy::LuaScript> for StrategyScript {
    fn from(script: &strategy::LuaScript) -> Self {
        Self {
            source: script.source,
            fast_path: script.fast_path,
        }
    }
}

impl Script {
    fn of(strategies: &[StrategyScript]) -> Self {
        let (mut sources, mut fast_paths) = (String::new(), String::new());
        for (number, strategy) in (1..).zip(strategies) {
            sources += &format!("if strategy == {number} then\n{}\nend\n", strategy.source);
            if let Some(fast_path) = strategy.fast_path {
                fast_paths += &format!(
                    "if fast == {number} then\nfast_runs = fast_runs + 1\n{fast_path}\nend\n"
                );
            }
        }
        let operations = format!("evaluate_counters, undo = (function()\n{OPERATIONS}\nend)()\n");
        let general = fill(GENERAL, "strategies", &sources);
        let general = fill(&general, "operations", &operations);
        let general = format!("evaluate = (function()\n{general}\nend)()\n");
        let text = fill(MAIN, "fast paths", &fast_paths);
        let text = fill(&text, "general path", &general);
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// Puts Lua into the slot of that name.
fn fill(text: &str, slot: &str, lua: &str) -> String {
    let slot = format!("-- SLOT: {slot}\n");
    debug_assert_eq!(text.matches(&slot).count(), 1, "{slot}");
    text.replacen(&slot, lua, 1)
}

#[cfg(test)]
mod tests;
