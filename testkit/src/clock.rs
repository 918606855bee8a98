//! The time that servers see.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::{NamedTempFile, TempPath};

use crate::folder;

/// A wall clock for servers, which stands still until it is set.
///
/// Clones are the same clock, and any number of servers may follow it; each sees
/// a new time with its next command. It works through a small C library that is
/// compiled once per process with `cc`, so it needs Linux, a C compiler, and servers
/// that are not linked statically. Valkey from 9.1 on computes the time from the
/// processor's counter; the library keeps it from that on x86, not on ARM.
///
/// What follows at once: `TIME`, also in scripts, every kind of expiry, and what
/// `PTTL` says. A key still exists in the millisecond in which its `PTTL` is 0, and
/// is gone in the next. What does not follow:
///
/// * The server's own timers, and the limit on a script's run time, use the real
///   monotonic clock.
/// * `OBJECT IDLETIME` and the idle times in `CLIENT LIST` use a time that the
///   server refreshes ten times a second.
/// * The timeouts of `BLPOP`, `WAIT` and `CLIENT PAUSE` count wall-clock time:
///   they never pass on a clock that stands still.
/// * Durations (`SLOWLOG`, `usec` in command statistics) read 0 unless the clock
///   moves during a command.
///
/// Expired keys are soon removed in the background, so a key that expired by a
/// step forward does not come back with a step back.
#[derive(Debug, Clone)]
pub struct Clock {
    inner: Arc<Inner>,
}

/// What the monotonic clock of a program shows that follows a [`Clock`], and its timers with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timers {
    /// Real time.
    Real,
    /// The time of the clock, so that a timer expires only once the clock was set.
    Stopped,
    /// The time of the clock, which each wait for events that ends by its timeout advances by that timeout. So time passes by the
    /// timers of the program's event loop alone, however slow the machine is.
    Advance,
}

#[derive(Debug)]
struct Inner {
    cell: Mutex<File>,
    path: PathBuf,
    /// Removes the file, if this process has made it.
    _file: Option<TempPath>,
}

/// The variables of the environment that make a program see a clock.
const PRELOAD: &str = "LD_PRELOAD";
const CELL: &str = "TESTKIT_CLOCK";
const TIMERS: &str = "TESTKIT_CLOCK_TIMERS";

impl Clock {
    /// A clock that shows `unix_micros`, in microseconds since 1970; 0 stands for
    /// the real time, which runs.
    pub fn at(unix_micros: u64) -> Self {
        let (cell, path) = NamedTempFile::new_in(folder::common())
            .expect("a file can be made in this process's own folder")
            .into_parts();
        let clock = Self {
            inner: Arc::new(Inner {
                cell: Mutex::new(cell),
                path: path.to_path_buf(),
                _file: Some(path),
            }),
        };
        clock.set(unix_micros);
        clock
    }

    /// The clock that this process itself follows, if it was started with the [variables](Self::variables) of one.
    ///
    /// # Panics
    /// If the clock's file can't be opened.
    pub fn of_this_process() -> Option<Self> {
        let path = PathBuf::from(env::var_os(CELL)?);
        let cell = OpenOptions::new().read(true).write(true).open(&path);
        Some(Self {
            inner: Arc::new(Inner {
                cell: Mutex::new(cell.expect("the clock's file can be opened")),
                path,
                _file: None,
            }),
        })
    }

    /// Makes a program see the real time, also if this process follows a clock.
    pub(crate) fn remove_from(command: &mut Command) {
        // Without a clock, what is preloaded is something else.
        if env::var_os(CELL).is_some() {
            for variable in [PRELOAD, CELL, TIMERS] {
                command.env_remove(variable);
            }
        }
    }

    /// Shows `unix_micros` from now on; 0 goes back to the real time.
    pub fn set(&self, unix_micros: u64) {
        write(&self.cell(), unix_micros);
    }

    /// Goes forward.
    pub fn advance(&self, by: Duration) {
        let cell = self.cell();
        let later = shown(&cell)
            .checked_add(micros(by))
            .expect("the clock cannot go past its range");
        write(&cell, later);
    }

    /// Goes back.
    ///
    /// # Panics
    /// If that would be 1970 or earlier.
    pub fn rewind(&self, by: Duration) {
        let cell = self.cell();
        let earlier = shown(&cell)
            .checked_sub(micros(by))
            .filter(|micros| *micros > 0);
        write(&cell, earlier.expect("the clock cannot go back to 1970"));
    }

    /// What the clock shows, in microseconds since 1970.
    pub fn micros(&self) -> u64 {
        shown(&self.cell())
    }

    /// Whether the clock is frozen, and does not follow real time.
    pub(crate) fn is_frozen(&self) -> bool {
        read(&self.cell()) != 0
    }

    /// Makes a program see this clock, whatever it is. It can set the clock itself: it is the 8 bytes of the file that
    /// `TESTKIT_CLOCK` names.
    pub fn put_in(&self, command: &mut Command) {
        command.envs(self.variables(Timers::Real));
    }

    /// The variables of the environment that make a program see this clock.
    pub fn variables(&self, timers: Timers) -> [(&'static str, PathBuf); 3] {
        let timers = match timers {
            Timers::Real => "real",
            Timers::Stopped => "stopped",
            Timers::Advance => "advance",
        };
        [
            (PRELOAD, library().to_owned()),
            (CELL, self.inner.path.clone()),
            (TIMERS, timers.into()),
        ]
    }

    fn cell(&self) -> MutexGuard<'_, File> {
        self.inner
            .cell
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).expect("a span of fewer than 584000 years")
}

fn shown(cell: &File) -> u64 {
    match read(cell) {
        0 => micros(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .expect("a date after 1970"),
        ),
        set => set,
    }
}

fn read(cell: &File) -> u64 {
    let mut bytes = [0; 8];
    cell.read_exact_at(&mut bytes, 0)
        .expect("the clock's file can be read");
    u64::from_ne_bytes(bytes)
}

fn write(cell: &File, micros: u64) {
    cell.write_all_at(&micros.to_ne_bytes(), 0)
        .expect("the clock's file can be written");
}

const SOURCE: &str = include_str!("clock.c");

/// The compiled library.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if cfg!(not(target_os = "linux")) {
            panic!("testkit::Clock works on Linux only");
        }
        match (env::var_os(CELL), env::var_os(PRELOAD)) {
            // This process follows a clock itself.
            (Some(_), Some(library)) => library.into(),
            _ => compile(folder::common()),
        }
    })
}

fn compile(folder: &Path) -> PathBuf {
    let (source, built) = (folder.join("clock.c"), folder.join("clock.so"));
    fs::write(&source, SOURCE).expect("the clock's source can be written");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&built, &source])
        .output()
        .unwrap_or_else(|err| panic!("testkit::Clock needs a C compiler, `cc`: {err}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "cc cannot compile the clock: {errors}"
    );
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_moves_both_ways_and_clones_share_it() {
        let clock = Clock::at(5_000_000);
        let other = clock.clone();
        clock.advance(Duration::from_secs(2));
        assert_eq!(other.micros(), 7_000_000);
        other.rewind(Duration::from_micros(1));
        assert_eq!(clock.micros(), 6_999_999);
    }

    #[test]
    fn zero_is_the_real_time() {
        let clock = Clock::at(0);
        let first = clock.micros();
        assert!(first > 1_700_000_000_000_000);
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.micros() > first);
    }

    #[test]
    #[should_panic(expected = "the clock cannot go back to 1970")]
    fn a_clock_cannot_be_rewound_to_1970() {
        Clock::at(5).rewind(Duration::from_micros(5));
    }
}
