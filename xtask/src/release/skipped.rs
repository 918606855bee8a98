//! What could not be checked on this machine, and what that needs.

#[derive(Debug, Default)]
pub(crate) struct Skipped(Vec<String>);

impl Skipped {
    pub(super) fn add(&mut self, what: &str, needed: &str) {
        let line = format!("{what}: {needed}");
        println!("    SKIPPED {line}");
        self.0.push(line);
    }

    pub(super) fn lines(&self) -> &[String] {
        &self.0
    }
}
