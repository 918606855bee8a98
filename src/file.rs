//! Files that are read with a bound.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    path::Path,
};

/// The largest document, and the largest secret in a file, that is read.
#[cfg(feature = "config")]
pub(crate) const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Reads the text of a regular file, of `max_bytes` at most.
pub(crate) fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        let error = format!("it is longer than {max_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
    }
    let text = String::from_utf8(bytes);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Opens a regular file. A read of a pipe or a device may never end, and neither may the opening of a pipe that waits for a
/// writer.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    // Of the file that is open: another one may have the path by now.
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ))
    }
}
