//! What files hold: read with a bound, and compared by hashes.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use blake3::{Hash, Hasher};

use super::error::{LoadError, Mistake};
use crate::{
    access::file::MAX_LIST_BYTES,
    file::{self, MAX_TEXT_BYTES, read_text},
};

/// Reads a document of [`MAX_TEXT_BYTES`] at most.
pub(crate) fn read(path: &Path) -> Result<String, LoadError> {
    read_text(path, MAX_TEXT_BYTES).map_err(|error| {
        let found = format!("no readable file: {error}");
        LoadError::new(
            Some(path),
            vec![Mistake::of_whole(found, "a file of UTF-8 text")],
        )
    })
}

/// The hash of a list of files: of their paths, and of what each holds or why it cannot be read. What no list can hold is left out.
pub(crate) fn hash_of_files(files: &[PathBuf]) -> Hash {
    let mut all = Hasher::new();
    for path in files {
        let mut content = Hasher::new();
        let read = file::open(path)
            .and_then(|file| io::copy(&mut file.take(MAX_LIST_BYTES + 1), &mut content));
        let error = read.err().map(|error| error.to_string());
        all.update(blake3::hash(path.as_os_str().as_encoded_bytes()).as_bytes());
        all.update(blake3::hash(error.unwrap_or_default().as_bytes()).as_bytes());
        all.update(content.finalize().as_bytes());
    }
    all.finalize()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_document_is_read_up_to_its_bound() {
        let folder = testkit::folder();
        let path = folder.path().join("limits.toml");
        fs::write(&path, vec![b'#'; MAX_TEXT_BYTES as usize]).expect("a file");
        assert_eq!(
            read_text(&path, MAX_TEXT_BYTES).expect("a text").len() as u64,
            MAX_TEXT_BYTES
        );
        fs::write(&path, vec![b'#'; MAX_TEXT_BYTES as usize + 1]).expect("a file");
        let error = read_text(&path, MAX_TEXT_BYTES).expect_err("too long");
        assert_eq!(error.to_string(), "it is longer than 1048576 bytes");
    }

    #[test]
    fn what_is_no_text_in_a_regular_file_is_an_error() {
        let folder = testkit::folder();
        let path = folder.path().join("limits.toml");
        assert_eq!(
            read_text(&path, MAX_TEXT_BYTES).expect_err("none").kind(),
            io::ErrorKind::NotFound
        );
        fs::write(&path, b"a = \"\xff\"").expect("a file");
        assert_eq!(
            read_text(&path, MAX_TEXT_BYTES)
                .expect_err("no text")
                .to_string(),
            "invalid utf-8 sequence of 1 bytes from index 5"
        );
        for other in [folder.path(), Path::new("/dev/zero")] {
            let error = read_text(other, MAX_TEXT_BYTES).expect_err("no file");
            assert_eq!(error.to_string(), "it is not a regular file");
        }
    }
}
