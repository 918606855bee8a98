//! The bytes of every strategy against those of the fixture.

use std::fmt::Write as _;

use tollgate_tests::prelude::*;

use super::{
    calls::{Call, Process},
    scenes::{self, Scene},
    server::Backend,
};

const FIXTURE: &str = "tests/redis/strategies/formats/formats.txt";

/// Before the name of each scene, and before its three parts.
const SCENE: &str = "== ";
const CALLS: &str = "-- calls";
const KEYS: &str = "-- keys at ";
const LATER: &str = "-- later";
const KEYS_LATER: &str = "-- keys later";

/// What a scene left: as the fixture holds it.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    calls: Vec<String>,
    /// When the keys were read, in microseconds since 1970.
    micros: u64,
    keys: Vec<String>,
    later: Vec<String>,
    keys_later: Vec<String>,
}

/// A scene from its first call on an empty server.
async fn played(scene: &Scene) -> Record {
    let mut backend = Backend::start(scene.cluster);
    let mut process = process(scene, &backend);
    let mut calls = Vec::new();
    for call in &scene.calls {
        calls.push(process.make(call, &backend).await);
    }
    let keys = backend.dump();
    let micros = backend.micros();
    let (later, keys_later) = went_on(scene, &mut process, &mut backend).await;
    Record {
        calls,
        micros,
        keys,
        later,
        keys_later,
    }
}

/// A scene of which a process of another version made the first calls, and left these keys.
async fn resumed(scene: &Scene, record: &Record) -> (Vec<String>, Vec<String>) {
    let mut backend = Backend::start(scene.cluster);
    backend.load(record.micros, record.keys.iter().map(String::as_str));
    assert_eq!(backend.dump(), record.keys, "{}: as loaded", scene.name);
    let mut process = process(scene, &backend);
    went_on(scene, &mut process, &mut backend).await
}

/// Peeks at each key, and makes the later calls.
async fn went_on(
    scene: &Scene,
    process: &mut Process,
    backend: &mut Backend,
) -> (Vec<String>, Vec<String>) {
    let mut peeks: Vec<Call> = Vec::new();
    for peek in scene.calls.iter().filter_map(Call::peeks) {
        if !peeks.iter().any(|other| other.is_about(&peek)) {
            peeks.push(peek);
        }
    }
    let mut later = Vec::new();
    for call in peeks.iter().chain(&scene.later) {
        later.push(process.make(call, backend).await);
    }
    (later, backend.dump())
}

fn process(scene: &Scene, backend: &Backend) -> Process {
    let store = (scene.store)(backend.store()).build().expect("a store");
    let builder = Limiter::builder().store(store);
    let builder = (scene.policies)()
        .into_iter()
        .fold(builder, LimiterBuilder::policy);
    let limiter = builder.on_store_error(OnStoreError::Reject).build();
    Process::new(limiter.expect(scene.name))
}

#[tokio::test]
async fn each_strategy_writes_the_recorded_bytes() {
    if env::var_os("TOLLGATE_WRITE_FORMATS").is_some() {
        write().await;
        panic!("{FIXTURE} is written anew: look at what has changed");
    }
    for scene in scenes::all() {
        let (now, before) = (played(&scene).await, recorded(scene.name));
        assert_eq!(now.keys, before.keys, "{}: keys", scene.name);
        assert_eq!(
            now.keys_later, before.keys_later,
            "{}: keys later",
            scene.name
        );
        assert_eq!(now, before, "{}: answers", scene.name);
    }
}

#[tokio::test]
async fn each_strategy_continues_from_the_recorded_bytes() {
    for scene in scenes::all() {
        let before = recorded(scene.name);
        let (later, keys_later) = resumed(&scene, &before).await;
        assert_eq!(later, before.later, "{}: answers", scene.name);
        assert_eq!(keys_later, before.keys_later, "{}: keys", scene.name);
    }
}

#[test]
fn each_record_of_the_fixture_is_compared() {
    let names: Vec<_> = scenes::all().iter().map(|scene| scene.name).collect();
    let text = fixture();
    let recorded: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix(SCENE))
        .collect();
    assert_eq!(recorded, names);
}

fn fixture() -> String {
    // Where the package is now: the tests may have been built elsewhere.
    let path = tollgate_tests::repository(FIXTURE);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn recorded(name: &str) -> Record {
    let text = fixture();
    let mut scenes = text.split(SCENE).skip(1);
    let scene = scenes.find(|scene| scene.lines().next() == Some(name));
    let lines = scene
        .unwrap_or_else(|| panic!("{name} is not in {FIXTURE}"))
        .lines();
    let mut parts: Vec<Vec<String>> = Vec::new();
    let mut micros = 0;
    for line in lines.skip(1).filter(|line| !line.is_empty()) {
        if let Some(at) = line.strip_prefix(KEYS) {
            micros = at.parse().expect(line);
        }
        match (line.starts_with("-- "), parts.last_mut()) {
            (false, Some(part)) => part.push(line.to_owned()),
            _ => parts.push(Vec::new()),
        }
    }
    let [calls, keys, later, keys_later] = parts.try_into().expect("four parts");
    Record {
        calls,
        micros,
        keys,
        later,
        keys_later,
    }
}

async fn write() {
    let mut text = String::new();
    for scene in scenes::all() {
        let record = played(&scene).await;
        let micros = record.micros;
        let mut part = |head: String, lines: &[String]| {
            writeln!(text, "{head}").expect("a string grows");
            for line in lines {
                writeln!(text, "{line}").expect("a string grows");
            }
        };
        part(format!("{SCENE}{}", scene.name), &[]);
        part(CALLS.to_owned(), &record.calls);
        part(format!("{KEYS}{micros}"), &record.keys);
        part(LATER.to_owned(), &record.later);
        part(KEYS_LATER.to_owned(), &record.keys_later);
        text.push('\n');
    }
    fs::write(tollgate_tests::repository(FIXTURE), text).expect("the fixture can be written");
}
