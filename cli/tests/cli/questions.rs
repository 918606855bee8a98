//! Commands that change nothing, as text and as JSON, by the store and by the admin API.

use serde_json::{Value, json};

use crate::{
    program::{Run, assert_fields, with_input},
    served::{API_KEY, World},
};

/// The JSON that a command has printed, and its exit code.
#[track_caller]
fn answer(run: &Run) -> (Option<i32>, Value) {
    assert_eq!(run.stderr, "");
    let json = serde_json::from_str(&run.stdout).expect("JSON");
    (run.code, json)
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
    let (code, policies) = answer(&world.direct(&["policies", "--json"]));
    assert_eq!(
        (code, &policies["policies"][0]["quota"]),
        (Some(0), &"3/day".into())
    );
}

#[test]
fn a_peek_shows_a_hash_in_place_of_a_secret_and_reads_it_back() {
    let world = World::start();
    let service = world.service();
    assert!(service.admits());
    let run = service.run(&["peek", "api", API_KEY, "--json"]);
    assert!(!run.stdout.contains(API_KEY));
    let (code, status) = answer(&run);
    assert_eq!(code, Some(0));
    assert_fields(&status, json!({ "remaining": 2, "limit": 3 }));
    let key = status["key"].as_str().expect("a key");
    assert!(key.starts_with("hash:"), "{key}");

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
    // A process keeps its last report for a moment.
    let unasked = world.service();
    world.redis.kill();
    for run in [
        world.direct(&["health", "--json"]),
        unasked.run(&["health", "--json"]),
    ] {
        let (code, health) = answer(&run);
        assert_eq!((code, &health["healthy"]), (Some(1), &false.into()));
        let issue = health["issues"][0].as_str().expect("an issue");
        assert!(issue.contains("can't be used"), "{issue}");
    }
    let run = world.direct(&["health"]);
    run.assert_stdout("unhealthy\nissue: ");
    let run = world.direct(&["peek", "api", API_KEY]);
    assert_eq!((run.code, &*run.stdout), (Some(3), ""));
}

#[test]
fn what_a_process_has_counted_is_asked_of_that_process() {
    let world = World::start();
    let service = world.service();
    while service.admits() {}
    assert!(!service.admits());
    let run = service.run(&["top", "--policy", "api", "-n", "1"]);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    let row = run.stdout.lines().nth(2).expect("a row");
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!((cells[0], cells[2], cells[3]), ("api", "2", "0"), "{row}");
    assert!(cells[1].starts_with("hash:"), "{row}");
    let run = service.run(&["shadows"]);
    let shadows = "POLICY  EVALUATED  WOULD REJECT\nnext    ";
    assert!(run.stdout.starts_with(shadows), "{}", run.stdout);

    for command in ["top", "shadows", "watch"] {
        let run = world.direct(&[command, "--json"]);
        assert_eq!((run.code, &*run.stdout), (Some(2), ""), "{command}");
        run.assert_stderr("--admin");
    }
    let unknown = service.run(&["top", "--policy", "none"]);
    assert_eq!((unknown.code, &*unknown.stdout), (Some(2), ""));
}

#[test]
fn a_request_is_explained_without_charging_it() {
    let world = World::start();
    let service = world.service();
    let header = format!("x-api-key: {API_KEY}");
    let explain = ["explain", "GET", "/orders", "-H", &header];
    let explain_json = [&explain[..], &["--json"]].concat();
    let run = world.direct(&explain);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
    assert!(
        run.stdout.starts_with("admitted\nPOLICY "),
        "{}",
        run.stdout
    );
    let (code, explained) = answer(&world.direct(&explain_json));
    assert_eq!((code, &explained["outcome"]), (Some(0), &"admitted".into()));
    assert_fields(
        &explained["policies"][0],
        json!({ "cost": 1, "remaining": 3 }),
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
    let (code, explained) = answer(&service.run(&explain_json));
    assert_eq!((code, &explained["outcome"]), (Some(1), &"rejected".into()));

    let arguments = [
        "explain",
        "GET",
        "/orders",
        "-H",
        "-",
        "--config",
        &world.file,
    ];
    let run = with_input(&arguments, &format!("{header}\n"));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let run = world.direct(&["explain", "GET", "/orders", "-H", API_KEY]);
    assert_eq!(run.code, Some(2));
    assert!(!run.stderr.contains(API_KEY), "{}", run.stderr);
}

#[test]
fn explain_says_how_to_give_an_address_that_a_policy_counts_by() {
    let world = World::with(|port| {
        format!(
            "[store]\nurl = 'redis://127.0.0.1:{port}'\ntimeout = '300s'\n[policies.api]\nquota = '3/day'\n"
        )
    });
    let explain = ["explain", "GET", "/orders"];
    let run = world.direct(&explain);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let note = run.stdout.lines().last().expect("a line");
    assert!(
        note.starts_with("the request as given has no peer address") && note.contains("--peer"),
        "{}",
        run.stdout
    );
    for given in [["--peer", "192.0.2.1"], ["--key", "api=192.0.2.1"]] {
        let run = world.direct(&[&explain[..], &given].concat());
        run.assert_stdout("  192.0.2.1  ");
        assert!(!run.stdout.contains("no peer address"), "{}", run.stdout);
    }
    let run = world.direct(&[&explain[..], &["--key", "sk_1"]].concat());
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(!run.stderr.contains("sk_1"), "{}", run.stderr);
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
    let listed = |run: Run| -> Vec<String> {
        let (_, answer) = answer(&run);
        let blocks = answer["blocks"].as_array().expect("a list").iter();
        let keys = blocks.map(|block| block["key"].as_str().expect("a key").to_owned());
        keys.collect()
    };
    let keys = listed(world.direct(&blocks));
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.starts_with("hash:")));
    assert_eq!(listed(service.run(&blocks)), keys);

    let some = world.direct(&["blocks", "--limit", "1"]);
    assert_eq!((some.code, &*some.stderr), (Some(0), ""));
    assert!(some.stdout.starts_with("POLICY   KEY "), "{}", some.stdout);
    assert_eq!(some.stdout.lines().count(), 3, "{}", some.stdout);
    some.assert_stdout("there are more: --limit");
    let unblock = world.direct(&["unblock", &keys[0], "--policy", "blocked", "-y"]);
    assert_eq!(unblock.code, Some(0), "{}", unblock.stderr);
    assert_eq!(listed(service.run(&blocks)), keys[1..]);
    // A policy that is no ban.
    let run = world.direct(&["blocks", "--policy", "api"]);
    assert_eq!((run.code, &*run.stdout), (Some(2), ""), "{}", run.stderr);
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
    let (_, activity) = answer(&run);
    assert_eq!(activity["policies"][0]["policy"], "api");
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
