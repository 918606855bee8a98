//! Four processes on one Redis, under load, whose limits are changed.

use std::{fs, path::Path, time::Instant};

use testkit::{Clock, Server, folder};

use crate::config_reload::{
    load::Load,
    process::Example,
    until::until,
    writes::{NAME, edited, in_place, mounted_as_config_map, removed, renamed, swapped},
};

/// A full hour.
const START: u64 = 1_800_000_000_000_000;

const RELOADED: &str = "configuration file reloaded";

fn document(quota: u64) -> String {
    format!(
        r#"
        [store]
        url = "${{REDIS_URL}}"
        # The machine may be busy.
        timeout = "20s"

        [policies.api]
        quota = "{quota}/hour"
        key = "client_ip"
        strategy = "fixed_window"

        [policies.share]
        quota = "{quota}0000/hour"
        key = "client_ip"
        "#
    )
}

/// A change of the file under load, which comes to hold everywhere and lets exactly as many requests pass as it says.
async fn change(load: &Load, what: &str, quota: u64, admitted: u64, write: impl FnOnce(&str)) {
    let start = Instant::now();
    write(&document(quota));
    let limit = format!("{what}: the limit is {quota} in all processes");
    until(&limit, async || load.is_limit_everywhere(quota)).await;
    println!("{what}: {:.2} s", start.elapsed().as_secs_f64());
    let used_up = format!("{what}: the quota of {quota} is used up in all processes");
    until(&used_up, async || {
        load.check();
        load.is_rejected_everywhere(quota) && load.admitted() >= admitted
    })
    .await;
    assert_eq!(load.admitted(), admitted, "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_limits_hold_in_four_processes_however_the_file_is_changed() {
    // The window does not end: the count is that of all requests ever admitted.
    let server = Server::builder().clock(&Clock::at(START)).start();
    let folder = folder();
    let folder = folder.path();
    let file = folder.join(NAME);
    fs::write(&file, document(100)).expect("a file");
    mounted_as_config_map(folder);
    let variables = [
        ("REDIS_URL", server.url()),
        ("LIMITS", file.to_string_lossy().into_owned()),
    ];
    let variables = variables.each_ref().map(|(name, value)| (*name, &**value));
    let examples = [(); 4].map(|()| Example::start("configured", &variables));

    let load = Load::start(&examples.each_ref().map(Example::address));
    until("the quota is used up in all processes", async || {
        load.check();
        load.is_rejected_everywhere(100)
    })
    .await;
    assert_eq!(load.admitted(), 100);
    let connections = connections(&server);

    let put = |write: fn(&Path, &str)| move |text: &str| write(folder, text);
    change(&load, "ConfigMap swap", 200, 200, put(swapped)).await;
    change(&load, "second ConfigMap swap", 300, 300, put(swapped)).await;
    // From here on the file is no link any more.
    change(&load, "editor's write and rename", 400, 400, put(edited)).await;
    change(&load, "in-place write", 500, 500, put(in_place)).await;
    change(&load, "mv tmp file", 600, 600, put(renamed)).await;

    removed(folder);
    for example in &examples {
        example.output_until("configuration file not loaded");
    }
    assert!(load.is_rejected_everywhere(600));
    change(&load, "deletion and re-creation", 700, 700, put(renamed)).await;
    // Less than is used: what was used stays used.
    change(&load, "smaller quota", 50, 700, put(in_place)).await;
    change(&load, "larger quota", 800, 800, put(in_place)).await;

    load.check();
    load.assert_share_is_used(9);
    println!("{} requests, none failed", load.end().await);
    assert_eq!(self::connections(&server), connections);
    for example in &examples {
        let output = example.output();
        // Those above, and the one at the start. A file that is about to be written may be read while it is empty.
        assert_eq!(output.matches(RELOADED).count(), 9, "{output}");
        assert!(output.contains("can be loaded again"), "{output}");
    }
    assert_eq!(server.immortal_keys(), [""; 0]);
}

/// How many clients are connected.
fn connections(server: &Server) -> usize {
    server.command(&["CLIENT", "LIST"]).text().lines().count()
}
