//! Commands that change nothing.

use serde_json::Value;

use crate::{
    program::{assert_fields, with_input},
    served::{API_KEY, World},
};

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn policies_are_the_same_on_both_ways() {
    let world = World::start();
    let service = world.service();
    let direct = world.direct(&["policies"]);
    assert_eq!((direct.code, &*direct.stderr), (Some(0), ""));
    assert_eq!(
        direct.stdout,
        "POLICY   ROLE    QUOTA  STRATEGY    KEY\n\
         api      live    3/day  gcra        header:x-api-key\n\
         blocked  ban            block_list  header:x-api-key\n\
         next     shadow  2/day  gcra        header:x-api-key\n"
    );
    assert_eq!(service.run(&["policies"]).stdout, direct.stdout);
    let direct = world.direct(&["policies", "--json"]);
    assert_eq!(json(&direct.stdout)["policies"][0]["quota"], "3/day");
}

#[test]
fn a_peek_shows_a_hash_in_place_of_a_secret_and_reads_it_back() {
    let world = World::start();
    let service = world.service();
    assert!(service.admits());
    let run = service.run(&["peek", "api", API_KEY, "--json"]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    let status = json(&run.stdout);
    assert_fields(&status, serde_json::json!({ "remaining": 2, "limit": 3 }));
    let key = status["key"].as_str().expect("a key");
    assert!(key.starts_with("hash:"), "{key}");
    assert!(!run.stdout.contains(API_KEY));

    let again = world.direct(&["peek", "api", key, "--json"]);
    assert_eq!(json(&again.stdout)["remaining"], 2);
    let table = world.direct(&["peek", "api", key]);
    assert!(table.stdout.starts_with("POLICY  KEY "), "{}", table.stdout);
    table.assert_stdout("  2     3      yes       0      ");
}

#[test]
fn the_health_of_the_store_is_an_exit_code() {
    let world = World::start();
    let service = world.service();
    let run = service.run(&["health"]);
    assert!(run.stdout.starts_with("healthy\n"), "{}", run.stdout);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    world.redis.kill();
    let run = world.direct(&["health"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stdout.starts_with("unhealthy\nissue: "),
        "{}",
        run.stdout
    );
    let run = world.direct(&["peek", "api", API_KEY]);
    assert_eq!((run.code, &*run.stdout), (Some(3), ""));
}

#[test]
fn what_shadow_policies_would_have_rejected_is_shown() {
    let world = World::start();
    let service = world.service();
    for _ in 0..3 {
        assert!(service.admits());
    }
    let run = service.run(&["shadows"]);
    assert_eq!(
        run.stdout,
        "POLICY  EVALUATED  WOULD REJECT\n\
         next    3          1\n"
    );
    let run = world.direct(&["shadows"]);
    assert_eq!(run.code, Some(2));
    run.assert_stderr("--admin");
}

#[test]
fn a_request_is_explained_without_charging_it() {
    let world = World::start();
    let service = world.service();
    let header = format!("x-api-key: {API_KEY}");
    let explain = ["explain", "GET", "/orders", "-H", &header];
    let run = world.direct(&explain);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    assert!(
        run.stdout.starts_with("admitted\nPOLICY "),
        "{}",
        run.stdout
    );
    while service.admits() {}
    let run = service.run(&explain);
    assert_eq!((run.code, &*run.stderr), (Some(1), ""));
    assert!(
        run.stdout.starts_with("rejected; retry in "),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("hash:") && !run.stdout.contains(API_KEY));

    let file = world.file.as_str();
    let arguments = ["explain", "GET", "/orders", "-H", "-", "--config", file];
    let run = with_input(&arguments, &format!("{header}\n"));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let run = world.direct(&["explain", "GET", "/orders", "-H", API_KEY]);
    assert_eq!(run.code, Some(2));
    assert!(!run.stderr.contains(API_KEY), "{}", run.stderr);
}

#[test]
fn the_most_rejected_keys_of_a_process_are_listed_as_hashes() {
    let world = World::start();
    let service = world.service();
    while service.admits() {}
    assert!(!service.admits());
    let run = service.run(&["top", "--policy", "api", "-n", "5"]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    let row = run.stdout.lines().nth(2).expect("a row");
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        (cells[0], cells[2], cells[3]),
        ("api", "2", "0"),
        "{}",
        run.stdout
    );
    assert!(cells[1].starts_with("hash:"), "{row}");
}

#[test]
fn blocked_keys_are_listed_on_both_ways_and_unblocked_by_what_is_listed() {
    let world = World::start();
    let service = world.service();
    let run = service.run(&["blocks"]);
    assert_eq!((run.code, &*run.stdout), (Some(0), "no key is blocked\n"));
    for key in [API_KEY, "sk_live_other"] {
        let run = service.run(&["block", key, "--for", "1day", "-y"]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
    }
    let blocks = ["blocks", "--policy", "blocked", "--json"];
    let direct = json(&world.direct(&blocks).stdout);
    let listed = |answer: &Value| -> Vec<String> {
        let blocks = answer["blocks"].as_array().expect("a list").iter();
        let keys = blocks.map(|block| block["key"].as_str().expect("a key").to_owned());
        keys.collect()
    };
    let keys = listed(&direct);
    assert_eq!((keys.len(), &direct["complete"]), (2, &true.into()));
    assert_eq!(listed(&json(&service.run(&blocks).stdout)), keys);
    let table = service.run(&["blocks"]).stdout;
    assert!(table.starts_with("POLICY   KEY "), "{table}");
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(keys.iter().all(|key| key.starts_with("hash:")));

    let some = world.direct(&["blocks", "--limit", "1"]);
    assert_eq!((some.code, &*some.stderr), (Some(0), ""));
    assert_eq!(some.stdout.lines().count(), 3, "{}", some.stdout);
    some.assert_stdout("there are more: --limit");
    let unblock = world.direct(&["unblock", &keys[0], "--policy", "blocked", "-y"]);
    assert_eq!(unblock.code, Some(0), "{}", unblock.stderr);
    assert_eq!(listed(&json(&service.run(&blocks).stdout)), keys[1..]);
}

#[test]
fn blocks_under_a_policy_that_is_no_ban_are_a_wrong_argument() {
    let world = World::start();
    for arguments in [["--policy", "api"], ["--policy", "none"], ["--limit", "0"]] {
        let run = world.direct(&[&["blocks"], &arguments[..]].concat());
        assert_eq!((run.code, &*run.stdout), (Some(2), ""), "{}", run.stderr);
    }
}

#[test]
fn a_watch_prints_a_table_a_second() {
    let world = World::start();
    let service = world.service();
    while service.admits() {}
    let run = service.run(&["watch", "-n", "2"]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    // No terminal, so nothing is cleared.
    assert!(!run.stdout.contains('\u{1b}'));
    let lines = |start: &'static str| run.stdout.lines().filter(move |l| l.starts_with(start));
    assert_eq!(lines("POLICY ").count(), 2, "{}", run.stdout);
    let cells = |line: &'_ str| line.split_whitespace().map(str::to_owned).collect();
    let rates: Vec<Vec<String>> = lines("api ").map(cells).collect();
    assert_eq!(rates[0][1..4], ["-", "-", "-"]);
    assert_eq!(rates[1][1..4], ["0.0", "0.0", "0.0"]);
    assert_eq!(rates[1][6], "1");

    let run = service.run(&["watch", "--json", "-n", "1"]);
    assert_eq!(run.stdout.lines().count(), 1);
    assert_eq!(json(&run.stdout)["policies"][0]["policy"], "api");
}

#[test]
fn a_watch_ends_when_its_output_is_closed() {
    let world = World::start();
    let service = world.service();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = service.command(&["watch"]);
    let status = command.stdout(writer).status().expect("the program");
    assert_eq!(status.code(), Some(0));
}
