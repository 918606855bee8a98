//! Where servers keep their files, and what becomes of these.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// A folder that is removed when it is dropped.
pub use tempfile::TempDir;

/// A new folder, removed on drop, and in any case when this process ends.
///
/// # Panics
/// If none can be made in the temporary folder.
pub fn folder() -> TempDir {
    tempfile::tempdir_in(common()).expect("a folder can be made in this process's own")
}

/// The folder of all folders of this process. Statics are never dropped, and a process that is killed drops nothing, so a
/// shell waits for this process to end, and removes it then.
pub(crate) fn common() -> &'static Path {
    static FOLDER: OnceLock<(PathBuf, Child)> = OnceLock::new();
    let (folder, _) = FOLDER.get_or_init(|| {
        let folder = tempfile::Builder::new()
            .prefix("testkit-")
            .tempdir()
            .expect("a folder can be made in the temporary folder")
            .keep();
        let heir = heir(&folder).expect("a shell can be started");
        (folder, heir)
    });
    folder
}

/// Reads until this process has ended. Its servers may write for a moment yet, on a busy machine a long one.
const INHERIT: &str = r#"
    cat
    for _ in $(seq 300); do
        rm -rf "$0" && exit
        sleep 0.2
    done
"#;

fn heir(folder: &Path) -> io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.args(["-c", INHERIT]).arg(folder);
    // In a group of its own: what ends this process from the keyboard would end it too.
    shell.process_group(0).current_dir("/");
    shell.stdin(Stdio::piped());
    shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
