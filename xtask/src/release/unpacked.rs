//! The library as it is published, unpacked into a workspace of its own.

use std::fs;
use std::path::{Path, PathBuf};

use super::packages;
use crate::run::{Outcome, cargo, command, succeed, target_directory};
use crate::test::PACKAGE;

/// Below the target directory.
const FOLDER: &str = "release-check";

/// Unpacks the library for a check of this name, and returns the folder. Its manifest has no development dependencies.
pub(super) fn unpack(root: &Path, check: &str) -> Outcome<PathBuf> {
    let words = [
        "package",
        "--no-verify",
        "--allow-dirty",
        "--quiet",
        "--package",
    ];
    succeed(cargo(root, &words).arg(PACKAGE))?;
    let packages = packages::published(root)?;
    let library = packages.iter().find(|package| package.name == PACKAGE);
    let library = library.ok_or_else(|| format!("no package {PACKAGE}"))?;
    let name = format!("{PACKAGE}-{}", library.version);
    let target = target_directory(root)?;
    let folder = target.join(FOLDER).join(check);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let archive = target.join("package").join(format!("{name}.crate"));
    succeed(
        command("tar", &["-xzf"])
            .arg(&archive)
            .arg("-C")
            .arg(&folder),
    )?;
    let folder = folder.join(name);
    let manifest = folder.join("Cargo.toml");
    let failed = |error| format!("{}: {error}", manifest.display());
    let text = fs::read_to_string(&manifest).map_err(failed)?;
    let text = without_development_dependencies(&text) + "\n[workspace]\n";
    fs::write(&manifest, text).map_err(failed)?;
    Ok(folder)
}

/// Where the checks of unpacked sources build.
pub(super) fn target(root: &Path) -> Outcome<PathBuf> {
    Ok(target_directory(root)?.join(FOLDER).join("target"))
}

/// Cargo has written each into a table of its own. Users of the library build without them, and they would change what versions are chosen.
fn without_development_dependencies(manifest: &str) -> String {
    let mut kept = String::new();
    let mut keeps = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            keeps = !line.contains("dev-dependencies");
        }
        if keeps {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn development_dependencies_are_taken_off() {
    let manifest = "[package]\nname = \"a\"\n\n[dev-dependencies.b]\nversion = \"1\"\n\n\
                    [target.\"cfg(unix)\".dev-dependencies.c]\nversion = \"1\"\n\n[dependencies.d]\nversion = \"1\"\n";
    let kept = "[package]\nname = \"a\"\n\n[dependencies.d]\nversion = \"1\"\n";
    assert_eq!(without_development_dependencies(manifest), kept);
}
