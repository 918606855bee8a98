//! The one script: the halves of every strategy in use, and the driver.

use std::sync::Arc;

/// What judges by the halves.
const DRIVER: [&str; 5] = [
    include_str!("driver/batch.lua"),
    include_str!("driver/plain.lua"),
    include_str!("driver/general.lua"),
    include_str!("driver/grab.lua"),
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
pub(super) struct Scripts {
    sources: Vec<&'static str>,
    current: Arc<Script>,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            sources: Vec::new(),
            current: Arc::new(Script::of(&[])),
        }
    }

    /// The number of a half, as the driver counts them: from one. A half that is new makes a new script.
    pub(super) fn number(&mut self, source: &'static str) -> usize {
        if let Some(index) = self.sources.iter().position(|known| *known == source) {
            return index + 1;
        }
        self.sources.push(source);
        self.current = Arc::new(Script::of(&self.sources));
        self.sources.len()
    }

    pub(super) fn current(&self) -> Arc<Script> {
        self.current.clone()
    }
}

impl Script {
    fn of(sources: &[&str]) -> Self {
        let halves = sources
            .iter()
            .map(|source| format!("function()\n{source}\nend,\n"));
        let text = format!(
            "{}\nlocal strategies = {{\n{}}}\n\n{}",
            include_str!("driver/head.lua"),
            halves.collect::<String>(),
            DRIVER.concat(),
        );
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}
