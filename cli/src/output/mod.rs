//! What commands print: text or JSON.

use std::io::{self, Write};

use serde_json::Value;

pub(crate) mod printable;
pub(crate) mod table;

/// Standard output, as text or as JSON.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints one of the two. If its reader has closed the output, nothing is printed, and the command ends as it would have.
    pub(crate) fn print(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        let printed = if self.json {
            print_json(&json())
        } else {
            print(&text())
        };
        match printed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            printed => printed,
        }
    }
}

/// Prints text, and a line break at its end unless it is empty.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.is_empty() && !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

/// Prints indented JSON.
pub(crate) fn print_json(json: &Value) -> io::Result<()> {
    print(&format!("{json:#}"))
}

/// Writes a line to standard error. If its reader has closed it, nothing is written and the command goes on.
pub(crate) fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
