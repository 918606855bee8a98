//! The ways in which a file is changed.

use std::{io::Write, os::unix::fs::symlink};
use tollgate_tests::prelude::*;

/// The file's name in its folder.
pub(crate) const NAME: &str = "limits.toml";

/// Writes a new text in the file that is there.
pub(crate) fn in_place(folder: &Path, text: &str) {
    fs::write(folder.join(NAME), text).expect("the file is written");
}

/// `mv tmp file`.
pub(crate) fn renamed(folder: &Path, text: &str) {
    renamed_to(&folder.join(NAME), text);
}

/// `mv tmp file`, for another file.
pub(crate) fn renamed_to(file: &Path, text: &str) {
    let temporary = file.with_extension("tmp");
    fs::write(&temporary, text).expect("the file is written");
    fs::rename(&temporary, file).expect("the file is renamed");
}

/// As Kubernetes mounts a `ConfigMap`: the file is a link into the folder `..data`, which is a link to a folder of one version.
/// Here both links are made, and the text stays as it is.
pub(crate) fn mounted_as_config_map(folder: &Path) {
    let text = fs::read_to_string(folder.join(NAME)).expect("the file");
    swapped(folder, &text);
    let link = folder.join(".link");
    symlink(Path::new("..data").join(NAME), &link).expect("a link");
    fs::rename(link, folder.join(NAME)).expect("the link replaces the file");
}

/// Mounts a new version of the `ConfigMap` by replacing the link to its folder. The old folder is removed.
pub(crate) fn swapped(folder: &Path, text: &str) {
    let data = folder.join("..data");
    let old = fs::read_link(&data).ok();
    let number = old.as_deref().map_or(0, |old| {
        let number = old.to_string_lossy().replace("..version_", "");
        number.parse::<u64>().expect("a version") + 1
    });
    let version = format!("..version_{number}");
    fs::create_dir(folder.join(&version)).expect("a folder");
    fs::write(folder.join(&version).join(NAME), text).expect("the file is written");
    let link = folder.join("..data_tmp");
    symlink(&version, &link).expect("a link");
    fs::rename(link, data).expect("the link is replaced");
    if let Some(old) = old {
        fs::remove_dir_all(folder.join(old)).expect("the old version is removed");
    }
}

/// As an editor saves that keeps a backup until the new file is written.
pub(crate) fn edited(folder: &Path, text: &str) {
    let (file, backup) = (folder.join(NAME), folder.join("limits.toml~"));
    fs::rename(&file, &backup).expect("a backup");
    let mut new = fs::File::create(&file).expect("a new file");
    new.write_all(text.as_bytes()).expect("the text");
    new.sync_all().expect("written");
    fs::remove_file(&backup).expect("the backup is removed");
}

/// Removes the file.
pub(crate) fn removed(folder: &Path) {
    fs::remove_file(folder.join(NAME)).expect("the file is removed");
}
