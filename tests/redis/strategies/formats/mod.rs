//! What strategies store: state formats of custom strategies, and the bytes of the built-in ones.
//!
//! `formats.txt` holds, for each [scene](scenes), calls with their results, every key on Redis with its expiry,
//! type and value, and calls that go on from them. Processes of different versions share a server during a rolling
//! upgrade, so the bytes never change under one state format: [`stored`] compares them with what the code writes now,
//! and goes on counting from them. A new format has a new name, and so new lines here.
//!
//! `TOLLGATE_WRITE_FORMATS=1 cargo test --workspace --all-features --test redis each_strategy_writes` makes the calls of the file,
//! writes it anew, and fails. Lines that are new, for a scene that is new, are the only change that keeps counts. Those of a new scene
//! are written by hand first: its name, `-- calls`, calls without results, `-- keys at 0`, `-- later` and `-- keys later`.

mod calls;
mod custom;
mod scenes;
mod server;
mod stored;
