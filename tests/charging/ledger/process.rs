//! The other process, which is killed.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{self, Command, Stdio},
    sync::Arc,
    thread,
};

use testkit::Server;
use tokio::{runtime::Runtime, sync::mpsc};
use tollgate::{Limiter, OnStoreError, RedisStore};

use super::{
    Diary, OTHERS, Scene,
    counts::Tally,
    records::Note,
    traffic::{Kind, Notes, Process},
};
use crate::{strategy_kind::By, world::PATIENCE};

const URL: &str = "TOLLGATE_LEDGER_URL";
const SCENE: &str = "TOLLGATE_LEDGER_SCENE";

/// Begins each line that it says, whatever the tests' own program may say beside it.
const MARK: &str = "~ ";
const IDLE: &str = "idle";

/// The other process, and what it says.
pub(super) struct Child {
    process: process::Child,
    said: mpsc::UnboundedReceiver<String>,
}

impl Child {
    pub(super) fn start(server: &Server, scene: Scene) -> Self {
        let scene = format!("{:?}|{:?}|{}", scene.by, scene.kind, scene.seed);
        let mut process = Command::new(env::current_exe().expect("this test's program"))
            .args([
                "--exact",
                "ledger::process::child_process_that_is_killed",
                "--nocapture",
            ])
            .env(URL, server.url())
            .env(SCENE, scene)
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .expect("a process");
        let (say, said) = mpsc::unbounded_channel();
        let output = BufReader::new(process.stdout.take().expect("its output"));
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(MARK) {
                    drop(say.send(line.to_owned()));
                }
            }
        });
        Self { process, said }
    }

    /// Has it do a round; or kills it in the middle, after so many lines.
    pub(super) async fn round(&mut self, instant: u64, killed_after: Option<u64>, diary: &Diary) {
        let orders = self.process.stdin.as_mut().expect("its input");
        writeln!(orders, "{instant}").expect("it listens");
        let mut lines = 0;
        while let Some(line) = self.said.recv().await {
            let idle = line == IDLE;
            if !idle {
                let (request, note) = Note::read(&line);
                diary.add(request, note);
                lines += 1;
            }
            match killed_after {
                None if idle => return,
                Some(after) if idle || lines == after => self.kill(),
                _ => {}
            }
        }
        assert!(killed_after.is_some(), "it ended early");
    }

    fn kill(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs as a process of its own, above. It does nothing in a plain run of the tests.
#[test]
fn child_process_that_is_killed() {
    let (Ok(url), Ok(scene)) = (env::var(URL), env::var(SCENE)) else {
        return;
    };
    let scene: Vec<_> = scene.split('|').collect();
    let by = By::ALL.into_iter().find(|by| format!("{by:?}") == scene[0]);
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| format!("{kind:?}") == scene[1]);
    let seed = scene[2].parse().expect("a seed");
    let scene = (by.expect("a strategy"), kind.expect("a kind"), seed);
    // Refusals are remembered by this process's clock, and the server's is set by hand.
    let store = RedisStore::builder()
        .rejection_cache_staleness(std::time::Duration::ZERO)
        .url(url.clone())
        .timeout(PATIENCE)
        .build();
    let store = store.expect("a store");
    let limiter = |policy| {
        let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
        let builder = builder.store(store.clone()).policy(policy);
        builder.build().expect("a limiter")
    };
    let notes: Notes = Arc::new(|request, note| say(&note.write(request)));
    let runtime = Runtime::new().expect("a runtime");
    let tally = runtime.block_on(Tally::on(&url));
    let mut process = Process::new(scene, limiter, (notes, tally), OTHERS);
    // Until its parent kills it, or has gone.
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let instant = line.parse().expect("an instant");
        runtime.block_on(process.round(instant));
        say(IDLE);
    }
}

/// In one piece, so that no line is torn when the process is killed.
fn say(line: &str) {
    let line = format!("{MARK}{line}\n");
    std::io::stdout()
        .write_all(line.as_bytes())
        .expect("the receiver exists");
}
