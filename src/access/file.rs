//! Files of access lists.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    path::Path,
};

use crate::{error::ConfigError, setting::SettingValue};

/// The largest list that is read: some four million addresses.
pub(crate) const MAX_LIST_BYTES: u64 = 64 << 20;

/// The entries of a file, one per line. A comment begins with a `#` at the beginning of a line or after a space. The error of
/// `read` says what is expected.
pub(super) fn entries<T, E: Into<String>>(
    path: &Path,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, ConfigError> {
    let text = read_text(path, MAX_LIST_BYTES).map_err(|error| {
        let file = format!("the list {}", path.display());
        ConfigError::new(file, format!("a file that can be read: {error}"))
    })?;
    let mut entries = Vec::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let entry = entry(line);
        if !entry.is_empty() {
            // Without the line's text: the file may be another one than was meant, or hold credentials.
            let error = |expected| {
                let value = format!("line {} of {}", number + 1, path.display());
                ConfigError::new(value, expected)
            };
            entries.push(read(entry).map_err(error)?);
        }
    }
    Ok(entries)
}

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

pub(super) fn not_from_file() -> ConfigError {
    ConfigError::new(
        "a list that was not read from a file",
        "a list made by from_file",
    )
}

/// A file as a document says it.
#[cfg(feature = "config")]
pub(super) fn file(path: &Path) -> SettingValue {
    SettingValue::table([("file", SettingValue::text(path.display().to_string()))])
}

/// What was read from a file, or set by the application: the number of entries, and a hash of them, by which two lists can be
/// compared.
pub(super) fn content<T: AsRef<[u8]>>(
    path: Option<&Path>,
    entries: impl ExactSizeIterator<Item = T>,
) -> SettingValue {
    let number = entries.len() as u64;
    let mut hasher = blake3::Hasher::new();
    for entry in entries {
        hasher.update(entry.as_ref()).update(b"\n");
    }
    let hash = hasher.finalize().to_hex();
    let file = path.map(|path| SettingValue::text(path.display().to_string()));
    let file = file.map(|file| ("file", file)).into_iter();
    SettingValue::table(file.chain([
        ("entries", SettingValue::Number(number)),
        ("hash", SettingValue::text(hash[..8].to_owned())),
    ]))
}

fn entry(line: &str) -> &str {
    let comment = line.char_indices().find(|(at, c)| {
        *c == '#'
            && line[..*at]
                .chars()
                .next_back()
                .is_none_or(char::is_whitespace)
    });
    line[..comment.map_or(line.len(), |(at, _)| at)].trim()
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn comments_begin_a_line_or_follow_a_space() {
        for (line, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("  10.0.0.0/8\t# the office", "10.0.0.0/8"),
            ("# empty", ""),
            ("   ", ""),
            ("a#b", "a#b"),
            ("a#b #c", "a#b"),
            ("é#b #c", "é#b"),
        ] {
            assert_eq!(entry(line), expected, "{line:?}");
        }
    }
}
