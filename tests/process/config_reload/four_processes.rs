//! Four processes on one Redis, under load, whose limits are changed.

use testkit::folder;
use tollgate_tests::{
    example::{Example, Stage},
    prelude::*,
};

use crate::config_reload::{
    load::Load,
    writes::{NAME, edited, in_place, mounted_as_config_map, removed, renamed, swapped},
};

const RELOADED: &str = "configuration file reloaded";

fn document(quota: u64) -> String {
    format!(
        r#"
        [store]
        url = "${{REDIS_URL}}"
        timeout = "1d"

        [policies.api]
        quota = "{quota}/hour"
        key = "client_ip"
        strategy = "fixed_window"
        "#
    )
}

/// Waits, and lets the processes poll the file meanwhile, which they do every two seconds of their clock. Requests wake them.
async fn while_polled(processes: &Stage, what: &str, probe: impl Fn() -> bool) {
    until(what, async || {
        processes.clock.advance(secs(2));
        tokio::time::sleep(ms(50)).await;
        probe()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_limits_hold_in_four_processes_however_the_file_is_changed() {
    // The window does not end: the count is that of all requests ever admitted.
    let (redis, processes) = (Stage::on_redis(), Stage::in_process());
    let server = redis.server();
    let folder = folder();
    let folder = folder.path();
    let file = folder.join(NAME);
    fs::write(&file, document(100)).expect("a file");
    mounted_as_config_map(folder);
    let (url, limits) = (server.url(), file.to_string_lossy().into_owned());
    let variables = [("REDIS_URL", &*url), ("LIMITS", &*limits)];
    let examples = [(); 4].map(|()| processes.start("configured", &variables));

    let load = Load::start(&examples.each_ref().map(Example::address));
    // Exactly as many requests are admitted as the limit says that holds everywhere.
    let used_up = async |what: &str, quota: u64, admitted: u64| {
        until(what, async || {
            load.check();
            load.is_rejected_everywhere(quota) && load.admitted() >= admitted
        })
        .await;
        assert_eq!(load.admitted(), admitted, "{what}");
    };
    used_up("the first limit", 100, 100).await;
    let connections_before = connections(server);
    let change = async |what: &str, quota: u64, admitted: u64, write: fn(&Path, &str)| {
        write(folder, &document(quota));
        let is_limit = || load.is_limit_everywhere(quota);
        while_polled(&processes, what, is_limit).await;
        used_up(what, quota, admitted).await;
    };

    change("ConfigMap swap", 200, 200, swapped).await;
    change("second ConfigMap swap", 300, 300, swapped).await;
    // From here on the file is no link any more.
    change("editor's write and rename", 400, 400, edited).await;
    change("in-place write", 500, 500, in_place).await;
    change("mv tmp file", 600, 600, renamed).await;

    removed(folder);
    let missing = |example: &Example| example.output().contains("configuration file not loaded");
    while_polled(&processes, "the file is missed", || {
        examples.iter().all(missing)
    })
    .await;
    assert!(load.is_rejected_everywhere(600));
    change("deletion and re-creation", 700, 700, renamed).await;
    // Less than is used: what was used stays used.
    change("smaller quota", 50, 700, in_place).await;
    change("larger quota", 800, 800, in_place).await;

    load.check();
    load.end().await;
    // One that is left behind by each reload would show.
    let connections = connections(server);
    assert!(connections < connections_before + 9, "{connections}");
    for example in &examples {
        // Those above, and the one at the start. A file that is about to be written may be read while it is empty.
        let reloads = || example.output().matches(RELOADED).count();
        until("each reload is logged", async || reloads() >= 9).await;
        let output = example.output();
        assert_eq!(reloads(), 9, "{output}");
        assert!(output.contains("can be loaded again"), "{output}");
    }
    assert_eq!(server.immortal_keys(), [""; 0]);
}

/// How many clients are connected.
fn connections(server: &Server) -> usize {
    server.command(&["CLIENT", "LIST"]).text().lines().count()
}
