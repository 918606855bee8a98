//! The bytes of every strategy against those of the fixture.

use std::fmt::Write as _;

use tollgate_tests::prelude::*;

use super::{calls::Process, scenes, server::Backend};

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

    fn backend(&self) -> Backend {
        Backend::start(scenes::is_clustered(&self.name))
    }

    fn process(&self, backend: &Backend) -> Process {
        let store = scenes::store(&self.name, backend.store()).built();
        let builder = Limiter::builder().store(store);
        let builder = builder.on_store_error(OnStoreError::Reject);
        Process::new(stores::limiter(builder, scenes::policies(&self.name)))
    }

    /// The scene from its first call on an empty server.
    async fn played(&self) -> Self {
        let mut backend = self.backend();
        let mut process = self.process(&backend);
        let calls = process.make(&self.calls, &backend).await;
        let (keys, micros) = (backend.dump(), backend.micros());
        Self {
            name: self.name.clone(),
            calls,
            micros,
            keys,
            later: process.make(&self.later, &backend).await,
            keys_later: backend.dump(),
        }
    }

    /// The scene of which a process of another version made the first calls, and left these keys.
    async fn resumed(&self) -> (Vec<String>, Vec<String>) {
        let mut backend = self.backend();
        backend.load(self.micros, self.keys.iter().map(String::as_str));
        assert_eq!(backend.dump(), self.keys, "{}: as loaded", self.name);
        let mut process = self.process(&backend);
        let later = process.make(&self.later, &backend).await;
        (later, backend.dump())
    }
}

fn recorded() -> Vec<Record> {
    // Where the package is now: the tests may have been built elsewhere.
    let text = fs::read_to_string(tollgate_tests::repository(FIXTURE)).expect(FIXTURE);
    let records: Vec<_> = text.split(SCENE).skip(1).map(Record::parse).collect();
    assert!(records.len() >= 36, "scenes are missing in {FIXTURE}");
    records
}

#[tokio::test]
async fn each_strategy_writes_the_recorded_bytes() {
    if env::var_os("TOLLGATE_WRITE_FORMATS").is_some() {
        write().await;
        panic!("{FIXTURE} is written anew: look at what has changed");
    }
    for before in recorded() {
        let (now, name) = (before.played().await, &before.name);
        assert_eq!(now.keys, before.keys, "{name}: keys");
        assert_eq!(now.keys_later, before.keys_later, "{name}: keys later");
        assert_eq!(now, before, "{name}: answers");
    }
}

#[tokio::test]
async fn each_strategy_continues_from_the_recorded_bytes() {
    for before in recorded() {
        let (later, keys_later) = before.resumed().await;
        assert_eq!(later, before.later, "{}: answers", before.name);
        assert_eq!(keys_later, before.keys_later, "{}: keys", before.name);
    }
}

async fn write() {
    let mut text = String::new();
    for before in recorded() {
        let record = before.played().await;
        let keys = format!("{KEYS}{}", record.micros);
        writeln!(text, "{SCENE}{}", record.name).expect("a string grows");
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
