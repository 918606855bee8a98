//! Documents: the rules of domains as YAML, in the format of Envoy's reference server (envoyproxy/ratelimit) or in tollgate's own.
//!
//! A document whose key `format` is `tollgate/v1` is one of tollgate's; one without that key is in the reference format. A file may have
//! several documents, each with one domain. The crate's README has a table of all keys.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::{Args, builder::BoolishValueParser};
use serde_saphyr::Location;

mod mistake;
mod name;
mod own;
mod read;
mod reference;
mod schema;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use self::write::{Text as YamlText, counting};
use self::{mistake::Report, read::Reader};
pub use self::{
    mistake::{Mistake, Mistakes, Position},
    write::write,
};
use crate::rules::Rules;

/// The text of a file.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The file's name, for mistakes.
    pub file: &'a str,
    /// What it says.
    pub text: &'a str,
}

/// How documents are read, by the server and by commands. The default is the reference server's.
#[derive(Args, Clone, Copy, Debug, Default)]
// The group would have the name of the server's options.
#[group(skip)]
pub struct Options {
    /// Merge the rules of documents of the same domain, in their order. Without it such documents are a mistake.
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", value_parser = BoolishValueParser::new())]
    pub merge_domains: bool,
}

/// Reads the rules of the documents of several files, which are their texts.
///
/// # Errors
///
/// [`Mistakes`]: of each file the first one of its shape, such as an unknown key, or if it has none all others. Among them are a file of
/// more than 4 MiB, values within more than 64 lists and maps, more than 30 levels of rules, and more than 10,000 rules of all files.
pub fn parse(texts: &[Text<'_>], options: Options) -> Result<Rules, Mistakes> {
    let mut reader = Reader::new(options.merge_domains);
    for Text { file, text } in texts {
        reader.report.begin(file);
        parse_file(text, &mut reader);
    }
    reader.report.finish().map(|()| reader.rules)
}

/// Reads the rules of the documents of several files, and of all files of folders whose names end in `.yaml` or `.yml`, in the order of
/// their names; not of folders in them. It blocks while it reads.
///
/// # Errors
///
/// [`Mistakes`]: those of [`parse`], and files that can't be read.
pub fn load(paths: &[impl AsRef<Path>], options: Options) -> Result<Rules, Mistakes> {
    let mut reader = Reader::new(options.merge_domains);
    for path in paths {
        let path = path.as_ref();
        match files(path) {
            Ok(files) => {
                for file in files {
                    load_file(&file, &mut reader);
                }
            }
            Err(error) => {
                reader.report.begin(&path.display().to_string());
                reader
                    .report
                    .add(Location::UNKNOWN, format!("can't be read: {error}"));
            }
        }
    }
    reader.report.finish().map(|()| reader.rules)
}

/// The path itself, or the files of the folder.
pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_yaml = file
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml");
        // Of what a link points at.
        if is_yaml && fs::metadata(&file)?.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn load_file(path: &Path, reader: &mut Reader) {
    reader.report.begin(&path.display().to_string());
    match content(path, &mut reader.report) {
        Ok(Some(text)) => parse_file(&text, reader),
        Ok(None) => {}
        Err(error) => reader
            .report
            .add(Location::UNKNOWN, format!("can't be read: {error}")),
    }
}

/// What [`write`] returns, if it is not too large to be read.
pub(crate) fn convert(rules: &Rules) -> Result<String, Mistakes> {
    let text = write(rules);
    let mut report = Report::default();
    if text.len() > schema::MAX_BYTES {
        report.begin("the converted documents");
        report.add(Location::UNKNOWN, schema::too_large());
    }
    report.finish().map(|()| text)
}

fn parse_file(text: &str, reader: &mut Reader) {
    match schema::parse(text) {
        Err((location, message)) => reader.report.add(location, message),
        Ok(documents) if documents.is_empty() => {
            let message = "the file has no document; expected a domain and its descriptors";
            reader.report.add(Location::UNKNOWN, message);
        }
        Ok(documents) => {
            for document in documents {
                reader.document(document);
            }
        }
    }
}

/// The bytes of a regular file, of a file that is too large one more than it may have.
pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("no regular file; expected one"));
    }
    let mut bytes = Vec::new();
    let most = schema::MAX_BYTES as u64 + 1;
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of a regular file, which is not too large.
pub(crate) fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_bytes(path)?;
    if bytes.len() > schema::MAX_BYTES {
        return Err(io::Error::other(schema::too_large()));
    }
    Ok(bytes)
}

/// The text of a file; `None` if that is a mistake, which was reported.
fn content(path: &Path, report: &mut Report) -> io::Result<Option<String>> {
    let bytes = read_bytes(path)?;
    if bytes.len() > schema::MAX_BYTES {
        report.add(Location::UNKNOWN, schema::too_large());
        return Ok(None);
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) => {
            report.add(Location::UNKNOWN, "invalid UTF-8; expected YAML in UTF-8");
            Ok(None)
        }
    }
}
