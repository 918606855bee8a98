//! The lines of access logs.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;

/// The longest line; longer ones are not read.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// What a compressed log begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Stands for standard input.
const STDIN: &str = "-";

/// An access log.
pub(in crate::replay) struct Input {
    name: String,
    reader: Box<dyn BufRead>,
    number: u64,
    line: Vec<u8>,
}

/// A line of a log.
#[derive(Debug)]
pub(in crate::replay) struct Line<'a> {
    pub(in crate::replay) number: u64,
    /// `None` if it is too long.
    pub(in crate::replay) bytes: Option<&'a [u8]>,
}

impl Input {
    /// Opens a log, or standard input. It may be compressed by gzip.
    pub(in crate::replay) fn open(path: &Path) -> io::Result<Self> {
        let is_stdin = path == Path::new(STDIN);
        let reader: Box<dyn Read> = match is_stdin {
            true => Box::new(io::stdin()),
            false => Box::new(File::open(path)?),
        };
        let name = match is_stdin {
            true => PathBuf::from("standard input"),
            false => path.to_owned(),
        };
        Self::of(name.display().to_string(), reader)
    }

    pub(super) fn of(name: String, reader: Box<dyn Read>) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(MAX_LINE_BYTES, reader);
        let is_compressed = reader.fill_buf()?.starts_with(&GZIP);
        let reader: Box<dyn BufRead> = match is_compressed {
            true => Box::new(BufReader::new(MultiGzDecoder::new(reader))),
            false => Box::new(reader),
        };
        Ok(Self {
            name,
            reader,
            number: 0,
            line: Vec::new(),
        })
    }

    pub(in crate::replay) fn name(&self) -> &str {
        &self.name
    }

    /// The next line that is not empty; `None` at the end.
    pub(in crate::replay) fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        loop {
            self.line.clear();
            let mut part = (&mut self.reader).take(MAX_LINE_BYTES as u64);
            if part.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let is_whole = self.line.ends_with(b"\n") || self.line.len() < MAX_LINE_BYTES;
            if !is_whole {
                self.reader.skip_until(b'\n')?;
            } else if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return Ok(Some(Line {
                number: self.number,
                bytes: is_whole.then_some(&*self.line),
            }));
        }
    }
}
