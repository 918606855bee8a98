//! The example as it is shipped.

use std::fs;

use testkit::{Server, folder};
use tollgate::config::{Document, Format};

use crate::config_reload::process::Example;

fn shipped(name: &str) -> String {
    let folder = tollgate_tests::repository("examples/configured");
    folder.join(name).to_string_lossy().into_owned()
}

/// Sends twelve requests; returns their statuses.
fn twelve(example: &Example) -> Vec<u16> {
    (0..12).map(|_| example.get("/", &[]).status).collect()
}

fn ten_of_twelve() -> Vec<u16> {
    [vec![200; 10], vec![429; 2]].concat()
}

#[test]
fn the_shipped_limits_admit_ten_a_minute_in_either_format() {
    let yaml = shipped("limits.yaml");
    for variables in [&[][..], &[("LIMITS", &*yaml)]] {
        let example = Example::start("configured", variables);
        assert_eq!(twelve(&example), ten_of_twelve());
    }
}

#[test]
fn both_shipped_files_say_the_same() {
    let [toml, yaml] = ["limits.toml", "limits.yaml"].map(|name| {
        let document = Document::load(shipped(name)).expect("a document");
        document.to_text(Format::Toml)
    });
    assert_eq!(toml, yaml);
}

#[test]
fn the_shipped_limits_count_on_redis_if_the_environment_names_it() {
    let server = Server::start();
    let examples = [(); 2].map(|()| Example::start("configured", &[("REDIS_URL", &server.url())]));
    let admitted = (0..12).filter(|n| examples[n % 2].get("/", &[]).status == 200);
    assert_eq!(admitted.count(), 10);
    assert!(server.keys().contains(&"tg:g3:api:127.0.0.1".to_owned()));
}

#[test]
fn a_changed_limit_holds_for_requests_that_follow() {
    let folder = folder();
    let file = folder.path().join("limits.toml");
    fs::copy(shipped("limits.toml"), &file).expect("a copy");
    let limits = file.to_string_lossy().into_owned();
    let example = Example::start("configured", &[("LIMITS", &limits)]);
    assert_eq!(twelve(&example), ten_of_twelve());
    let text = fs::read_to_string(&file).expect("the file");
    fs::write(&file, text.replace("10/min", "100/min burst 20")).expect("the file");
    example.output_until("burst 20");
    let policy = example.get("/", &[]);
    assert_eq!(
        policy.field("ratelimit-policy"),
        Some(r#""api";q=100;w=60"#)
    );
}
