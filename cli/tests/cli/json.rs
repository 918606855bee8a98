//! `--json` of the commands that call the admin API, on both ways, and their exit codes.

use serde_json::{Value, json};

use crate::{
    program::{Run, assert_fields},
    served::{API_KEY, Service, World},
};

/// The JSON that a command has printed, and its exit code.
#[track_caller]
fn answer(run: &Run) -> (Option<i32>, Value) {
    assert_eq!(run.stderr, "");
    let json = serde_json::from_str(&run.stdout).expect("JSON");
    (run.code, json)
}

/// Runs a command on the store, and by the admin API.
#[track_caller]
fn both(world: &World, service: &Service, arguments: &[&str]) -> [(Option<i32>, Value); 2] {
    [world.direct(arguments), service.run(arguments)].map(|run| answer(&run))
}

fn names(policies: &Value) -> Vec<&str> {
    let policies = policies.as_array().expect("a list").iter();
    policies.filter_map(|one| one["policy"].as_str()).collect()
}

#[test]
fn explain_prints_the_explanation_and_its_exit_code_says_whether_it_admits() {
    let world = World::start();
    let service = world.service();
    let header = format!("x-api-key: {API_KEY}");
    let explain = ["explain", "GET", "/orders", "-H", &header, "--json"];
    for (code, explained) in both(&world, &service, &explain) {
        assert_eq!((code, &explained["outcome"]), (Some(0), &"admitted".into()));
        assert_eq!(explained["retry_after_ms"], 0);
        let policies = &explained["policies"];
        assert_eq!(names(policies), ["api", "blocked", "next"]);
        assert_fields(&policies[0], json!({ "cost": 1, "remaining": 3 }));
        assert_fields(&policies[2], json!({ "shadow": true, "limit": 2 }));
        let key = policies[0]["key"].as_str().expect("a key");
        assert!(key.starts_with("hash:"), "{key}");
    }
    while service.admits() {}
    for (code, explained) in both(&world, &service, &explain) {
        assert_eq!((code, &explained["outcome"]), (Some(1), &"rejected".into()));
        assert!(explained["retry_after_ms"].as_u64() > Some(0));
        assert_eq!(explained["policies"][0]["would_admit"], false);
    }
    // A request without the header.
    let lacks = ["explain", "GET", "/orders", "--json"];
    for (code, explained) in both(&world, &service, &lacks) {
        assert_eq!(code, Some(1));
        assert_eq!(explained["outcome"], "missing_key");
        let reason = "rejected without the header x-api-key";
        assert_eq!(explained["policies"][0]["reason"], reason);
    }
    let wrong = world.direct(&["explain", "GE T", "/orders", "--json"]);
    assert_eq!((wrong.code, &*wrong.stdout), (Some(2), ""));
    let wrong = service.run(&["explain", "GE T", "/", "--json"]);
    assert_eq!(wrong.code, Some(2));
}

#[test]
fn explain_says_how_to_give_an_address_that_a_policy_counts_by() {
    let document = |port| {
        format!(
            "[store]\nurl = 'redis://127.0.0.1:{port}'\ntimeout = '300s'\n[policies.api]\nquota = '3/day'\n"
        )
    };
    let world = World::with(document);
    let explain = ["explain", "GET", "/orders"];
    let run = world.direct(&explain);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let note = run.stdout.lines().last().expect("a line");
    assert!(
        note.starts_with("the request as given has no peer address") && note.contains("--peer"),
        "{}",
        run.stdout
    );
    let shared = "yes: counted with all requests without a client address";
    run.assert_stdout(shared);
    let run = world.direct(&[&explain[..], &["--peer", "192.0.2.1"]].concat());
    run.assert_stdout("  192.0.2.1  ");
    assert!(!run.stdout.contains("no peer address"), "{}", run.stdout);
    let run = world.direct(&[&explain[..], &["--key", "api=192.0.2.2"]].concat());
    run.assert_stdout("  192.0.2.2  ");
    assert!(!run.stdout.contains("no peer address"), "{}", run.stdout);
    let run = world.direct(&[&explain[..], &["--key", "sk_1"]].concat());
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(!run.stderr.contains("sk_1"), "{}", run.stderr);
}

#[test]
fn health_prints_the_report_and_its_exit_code_says_whether_it_has_issues() {
    let world = World::start();
    let service = world.service();
    for (code, health) in both(&world, &service, &["health", "--json"]) {
        assert_eq!((code, &health["healthy"]), (Some(0), &true.into()));
        assert_eq!(health["issues"], json!([]));
        assert_eq!(health["dropped_refunds"], 0);
    }
    // A process keeps its last report for a moment.
    let unasked = world.service();
    world.redis.kill();
    for (code, health) in both(&world, &unasked, &["health", "--json"]) {
        assert_eq!((code, &health["healthy"]), (Some(1), &false.into()));
        let issues = health["issues"].as_array().expect("a list");
        let issue = issues[0].as_str().expect("a text");
        assert!(issue.contains("can't be reached"), "{issue}");
    }
}

#[test]
fn top_and_shadows_print_what_a_process_has_counted_and_need_one() {
    let world = World::start();
    let service = world.service();
    while service.admits() {}
    assert!(!service.admits());
    let (code, top) = answer(&service.run(&["top", "--policy", "api", "-n", "1", "--json"]));
    assert_eq!((code, names(&top["policies"])), (Some(0), vec!["api"]));
    assert!(top["since"].is_string(), "{top}");
    let [api] = &top["policies"].as_array().expect("a list")[..] else {
        panic!("{top}");
    };
    assert_eq!(api["rejected"], 2);
    let [key] = &api["keys"].as_array().expect("a list")[..] else {
        panic!("{top}");
    };
    assert_fields(key, json!({ "rejected": 2, "at_most_over": 0 }));
    assert!(key["key"].as_str().expect("a key").starts_with("hash:"));

    let (code, shadows) = answer(&service.run(&["shadows", "--json"]));
    assert_eq!((code, names(&shadows["shadows"])), (Some(0), vec!["next"]));
    let next = json!({ "evaluated": 3, "would_reject": 1 });
    assert_fields(&shadows["shadows"][0], next);

    for command in ["top", "shadows"] {
        let run = world.direct(&[command, "--json"]);
        assert_eq!((run.code, &*run.stdout), (Some(2), ""), "{command}");
        run.assert_stderr("--admin");
    }
    let unknown = service.run(&["top", "--policy", "none", "--json"]);
    assert_eq!((unknown.code, &*unknown.stdout), (Some(2), ""));
}
