//! The one script: the halves of every strategy in use, and the driver.

use std::sync::Arc;

use crate::strategy;

/// What goes before the short cuts.
const OPEN: [&str; 2] = [
    include_str!("driver/open.lua"),
    include_str!("driver/segment.lua"),
];

/// What goes between them and the halves: what these may use.
const HEAD: [&str; 2] = [
    include_str!("driver/rest.lua"),
    include_str!("driver/head.lua"),
];

/// What judges by the halves.
const DRIVER: [&str; 4] = [
    include_str!("driver/leave.lua"),
    include_str!("driver/plain.lua"),
    include_str!("driver/general.lua"),
    include_str!("driver/run.lua"),
];

/// The script as it stands now.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    /// What `EVALSHA` calls it.
    pub(super) sha: String,
}

/// The halves in use, and the script made of them.
#[derive(Debug)]
pub(super) struct ScriptRegistry {
    halves: Vec<StrategyScript>,
    current: Arc<Script>,
}

impl ScriptRegistry {
    pub(super) fn new() -> Self {
        Self {
            halves: Vec::new(),
            current: Arc::new(Script::of(&[])),
        }
    }

    /// The number of a half, as the driver counts them: from one. A half that is new makes a new script.
    pub(super) fn number(&mut self, half: StrategyScript) -> usize {
        if let Some(index) = self.halves.iter().position(|known| *known == half) {
            return index + 1;
        }
        self.halves.push(half);
        self.current = Arc::new(Script::of(&self.halves));
        self.halves.len()
    }

    pub(super) fn current(&self) -> Arc<Script> {
        self.current.clone()
    }
}

/// A strategy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StrategyScript {
    source: &'static str,
    shortcut: Option<&'static str>,
}

impl From<&strategy::LuaScript> for StrategyScript {
    fn from(script: &strategy::LuaScript) -> Self {
        Self {
            source: script.source,
            shortcut: script.shortcut,
        }
    }
}

impl Script {
    fn of(halves: &[StrategyScript]) -> Self {
        let mut text = OPEN.concat();
        for (place, half) in halves.iter().enumerate() {
            if let Some(shortcut) = half.shortcut {
                let number = place + 1;
                text += &format!("if half == {number} then\n{shortcut}\nstops = stops + 1\nend\n");
            }
        }
        text += &HEAD.concat();
        text += "\nlocal strategies = {\n";
        for half in halves {
            text += &format!("function()\n{}\nend,\n", half.source);
        }
        text += "}\n\n";
        text += &DRIVER.concat();
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

#[cfg(test)]
mod tests;
