//! The script that judges a batch: `main.lua` with the strategies in use in its slots.
//!
//! `main.lua` is the whole control flow. It hands each segment of the batch to the fast path of its strategy (`gcra_short.lua`),
//! if there is one and the segment is fit for it, and what that can't judge to the general path (`general.lua`), which makes
//! the functions of the strategies in use, and those of `operations.lua` where a segment needs them. A file that goes into a slot
//! runs as if it stood there: a `-- luacheck:` line lists the locals of the other files that it uses.
//!
//! # What is sent
//!
//! `EVALSHA sha numkeys key … args`.
//!
//! The keys are those of each entry in turn, one per policy. The key of the epoch comes last, if the batch resets, refunds
//! or credits units: its change ends the rejections that processes have cached.
//!
//! `args` are MessagePack values, one after the other, since a list costs the script more to read. `main.lua` unpacks them into
//! the table `args`; places in it count from 1.
//!
//! 1. The place where the segments begin.
//! 2. Each policy of the batch once:
//!    - the number of its strategy in this script;
//!    - 1 if the caller is recorded with each charge, else 0;
//!    - how many numbers of its snapshot are replied;
//!    - how many parameters it has, and the parameters. If there are more than 24: 0, and a list of them.
//! 3. Segments of entries under the same policies at the same costs. An entry is one or several equal requests, and what is
//!    done for one policy of it is a counter.
//!    - The operation: 1 acquire or peek, 2 force-acquire, 3 refund, 4 reset, 5 renew, 6 settle.
//!    - How many entries there are, and how many policies.
//!    - For each policy: its place, the units that one request costs, and the mode: 0 charges what is admitted; 1 only checks
//!      that there are enough units; 2 charges rejected requests too, into debt; 3 the same without debt; 4 counts the requests
//!      that the other policies reject. A shadow, which rejects nothing, adds 8, and 8 more for each place up to that of the policy
//!      that it replaces.
//!    - 1 if each entry begins with the number of requests that it stands for. Else that is one for all of them.
//!    - A list of what the entries have of their own, or 0 if they have nothing. Of each entry: that number (0 to peek); to
//!      refund, renew or settle, a receipt for each policy: when it was charged, in µs since the epoch, its window, and how many
//!      units are left of it (0, to settle: charge by force); and for each policy that records callers, the caller of each request, at most as many
//!      as the quota has units.
//!
//! # What is replied
//!
//! One MessagePack list: the server's time in µs since the epoch, then for each entry
//!
//! - how many of its requests were admitted (1 for other operations), and for each policy the units that moved, unless
//!   that follows from the number admitted (any counter of an acquisition but a shadow's), and its snapshot;
//! - or -1 and an error, if it failed. Others of the batch are judged nevertheless.
//!

use std::sync::Arc;

use crate::strategy;

const MAIN: &str = include_str!("main.lua");
const GENERAL: &str = include_str!("general.lua");
const OPERATIONS: &str = include_str!("operations.lua");

/// The script as it is now.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    /// What `EVALSHA` calls it.
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
        Self {
            strategies: Vec::new(),
            current: Arc::new(Script::of(&[])),
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
            fast_path: script.shortcut,
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
                    "if fast == {number} then\nfast_misses = fast_misses + 1\n{fast_path}\nend\n"
                );
            }
        }
        let operations = format!("judge_counters, undo = (function()\n{OPERATIONS}\nend)()\n");
        let general = fill(GENERAL, "strategies", &sources);
        let general = fill(&general, "operations", &operations);
        let general = format!("judge = (function()\n{general}\nend)()\n");
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
