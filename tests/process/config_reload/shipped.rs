//! The example as it is shipped.

use tollgate_tests::{example::Stage, prelude::*, repository};

fn shipped(name: &str) -> String {
    let folder = repository("examples/configured");
    folder.join(name).to_string_lossy().into_owned()
}

#[test]
fn the_shipped_limits_count_on_redis_if_the_environment_names_it_in_either_format() {
    let stage = Stage::on_redis();
    let yaml = shipped("limits.yaml");
    let toml = stage.start("configured", &[]);
    let yaml = stage.start("configured", &[("LIMITS", &yaml)]);
    let ask = |n: usize| [&toml, &yaml][n % 2].get("/", &[]).status;
    let statuses: Vec<u16> = (0..12).map(ask).collect();
    assert_eq!(statuses, [&[200; 10][..], &[429; 2]].concat());
    let keys = stage.server().keys();
    assert!(keys.contains(&"tg:g3:api:127.0.0.1".to_owned()), "{keys:?}");
}

#[test]
fn both_shipped_files_say_the_same() {
    let [toml, yaml] = ["limits.toml", "limits.yaml"].map(|name| {
        let document = Document::load(shipped(name)).expect("a document");
        document.to_text(Format::Toml)
    });
    assert_eq!(toml, yaml);
}
