//! The lines of access logs.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

/// The longest line; longer ones are not read.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// The lines of an access log that are not empty.
pub(in crate::replay) struct Lines {
    reader: Box<dyn BufRead>,
    number: u64,
}

/// A line of a log.
#[derive(Debug)]
pub(in crate::replay) struct Line {
    /// From 1 on.
    pub(in crate::replay) number: u64,
    /// `None` if it is too long.
    pub(in crate::replay) text: Option<String>,
}

impl Lines {
    /// Opens a log; `-` is standard input.
    pub(in crate::replay) fn open(path: &Path) -> io::Result<Self> {
        let reader: Box<dyn BufRead> = if path.as_os_str() == "-" {
            Box::new(io::stdin().lock())
        } else {
            Box::new(BufReader::with_capacity(MAX_LINE_BYTES, File::open(path)?))
        };
        Ok(Self { reader, number: 0 })
    }

    /// The next line; `None` at the end.
    pub(in crate::replay) fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let mut bytes = Vec::new();
            let mut part = (&mut self.reader).take(MAX_LINE_BYTES as u64);
            if part.read_until(b'\n', &mut bytes)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let is_too_long = bytes.len() == MAX_LINE_BYTES && !bytes.ends_with(b"\n");
            if is_too_long {
                self.reader.skip_until(b'\n')?;
            } else if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            return Ok(Some(Line {
                number: self.number,
                text: (!is_too_long).then_some(text),
            }));
        }
    }
}
