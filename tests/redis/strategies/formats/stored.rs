//! The bytes of every strategy against those of the fixture.

use std::fmt::Write as _;

use tollgate_tests::prelude::*;

use super::{
    calls::Process,
    scenes::{self, Scene},
    server::Backend,
};

const FIXTURE: &str = "tests/redis/strategies/formats/formats.txt";

/// Before the name of each scene, and before its four parts.
const SCENE: &str = "== ";
const CALLS: &str = "-- calls";
const KEYS: &str = "-- keys at ";
const LATER: &str = "-- later";
const KEYS_LATER: &str = "-- keys later";

/// What a scene left: as the fixture holds it.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    name: String,
    calls: Vec<String>,
    /// When the keys were read, in microseconds since 1970.
    micros: u64,
    keys: Vec<String>,
    later: Vec<String>,
    keys_later: Vec<String>,
}

/// A scene from its first call on an empty server.
async fn played(scene: &Scene, record: &Record) -> Record {
    let mut backend = Backend::start(scene.cluster);
    let mut process = process(scene, &backend);
    let calls = process.make(&record.calls, &backend).await;
    let (keys, micros) = (backend.dump(), backend.micros());
    Record {
        name: record.name.clone(),
        calls,
        micros,
        keys,
        later: process.make(&record.later, &backend).await,
        keys_later: backend.dump(),
    }
}

/// A scene of which a process of another version made the first calls, and left these keys.
async fn resumed(scene: &Scene, record: &Record) -> (Vec<String>, Vec<String>) {
    let mut backend = Backend::start(scene.cluster);
    backend.load(record.micros, record.keys.iter().map(String::as_str));
    assert_eq!(backend.dump(), record.keys, "{}: as loaded", scene.name);
    let mut process = process(scene, &backend);
    let later = process.make(&record.later, &backend).await;
    (later, backend.dump())
}

fn process(scene: &Scene, backend: &Backend) -> Process {
    let store = (scene.store)(backend.store()).built();
    let builder = Limiter::builder().store(store);
    let builder = builder.on_store_error(OnStoreError::Reject);
    Process::new(stores::limiter(builder, scene.policies.clone()))
}

#[tokio::test]
async fn each_strategy_writes_the_recorded_bytes() {
    if env::var_os("TOLLGATE_WRITE_FORMATS").is_some() {
        write().await;
        panic!("{FIXTURE} is written anew: look at what has changed");
    }
    for (scene, before) in recorded() {
        let (now, name) = (played(&scene, &before).await, scene.name);
        assert_eq!(now.keys, before.keys, "{name}: keys");
        assert_eq!(now.keys_later, before.keys_later, "{name}: keys later");
        assert_eq!(now, before, "{name}: answers");
    }
}

#[tokio::test]
async fn each_strategy_continues_from_the_recorded_bytes() {
    for (scene, before) in recorded() {
        let (later, keys_later) = resumed(&scene, &before).await;
        assert_eq!(later, before.later, "{}: answers", scene.name);
        assert_eq!(keys_later, before.keys_later, "{}: keys", scene.name);
    }
}

/// Each scene, and its record: none of the fixture is left out.
fn recorded() -> Vec<(Scene, Record)> {
    // Where the package is now: the tests may have been built elsewhere.
    let text = fs::read_to_string(tollgate_tests::repository(FIXTURE)).expect(FIXTURE);
    let records: Vec<_> = text.split(SCENE).skip(1).map(Record::parse).collect();
    let names = records.iter().map(|record| &*record.name);
    let scenes = scenes::all();
    let expected: Vec<_> = scenes.iter().map(|scene| scene.name).collect();
    assert_eq!(names.collect::<Vec<_>>(), expected, "in {FIXTURE}");
    scenes.into_iter().zip(records).collect()
}

impl Record {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines().filter(|line| !line.is_empty());
        let name = lines.next().expect("a name").to_owned();
        let (mut parts, mut micros) = (Vec::<Vec<String>>::new(), 0);
        for line in lines {
            if let Some(at) = line.strip_prefix(KEYS) {
                micros = at.parse().expect(line);
            }
            match (line.starts_with("-- "), parts.last_mut()) {
                (false, Some(part)) => part.push(line.to_owned()),
                _ => parts.push(Vec::new()),
            }
        }
        let [calls, keys, later, keys_later] = parts.try_into().expect("four parts");
        Self {
            name,
            calls,
            micros,
            keys,
            later,
            keys_later,
        }
    }
}

async fn write() {
    let mut text = String::new();
    for (scene, before) in recorded() {
        let record = played(&scene, &before).await;
        let keys = format!("{KEYS}{}", record.micros);
        writeln!(text, "{SCENE}{}", scene.name).expect("a string grows");
        for (head, lines) in [
            (CALLS, record.calls),
            (&*keys, record.keys),
            (LATER, record.later),
            (KEYS_LATER, record.keys_later),
        ] {
            let lines = [vec![head.to_owned()], lines].concat().join("\n");
            writeln!(text, "{lines}").expect("a string grows");
        }
        text.push('\n');
    }
    fs::write(tollgate_tests::repository(FIXTURE), text).expect("the fixture can be written");
}
