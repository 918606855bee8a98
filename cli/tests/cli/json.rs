//! `--json` of the commands that call the admin API, on both ways, and their exit codes.

use serde_json::Value;

use crate::{
    program::Run,
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
    [
        answer(&world.direct(arguments)),
        answer(&service.run(arguments)),
    ]
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
        assert_eq!(
            (&policies[0]["cost"], &policies[0]["remaining"]),
            (&1.into(), &3.into())
        );
        assert_eq!(
            (&policies[2]["shadow"], &policies[2]["limit"]),
            (&true.into(), &2.into())
        );
        let key = policies[0]["key"].as_str().expect("a key");
        assert!(key.starts_with("hash:"), "{key}");
    }
    while service.admits() {}
    for (code, explained) in both(&world, &service, &explain) {
        assert_eq!((code, &explained["outcome"]), (Some(1), &"rejected".into()));
        assert!(
            explained["retry_after_ms"].as_u64() > Some(0),
            "{explained}"
        );
        assert_eq!(explained["policies"][0]["would_admit"], false);
    }
    // A request without the header.
    let lacks = ["explain", "GET", "/orders", "--json"];
    for (code, explained) in both(&world, &service, &lacks) {
        assert_eq!(
            (code, &explained["outcome"]),
            (Some(1), &"missing_key".into())
        );
        let reason = "rejected without the header x-api-key";
        assert_eq!(explained["policies"][0]["reason"], reason);
    }
    let wrong = world.direct(&["explain", "GE T", "/orders", "--json"]);
    assert_eq!((wrong.code, &*wrong.stdout), (Some(2), ""));
    assert_eq!(
        service.run(&["explain", "GE T", "/", "--json"]).code,
        Some(2)
    );
}

#[test]
fn explain_says_how_to_give_an_address_that_a_policy_counts_by() {
    let document = |port| {
        format!("[store]\nurl = 'redis://127.0.0.1:{port}'\n[policies.api]\nquota = '3/day'\n")
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
    assert!(run.stdout.contains(shared), "{}", run.stdout);
    let run = world.direct(&[&explain[..], &["--peer", "192.0.2.1"]].concat());
    assert!(run.stdout.contains("  192.0.2.1  "), "{}", run.stdout);
    assert!(!run.stdout.contains("no peer address"), "{}", run.stdout);
}

#[test]
fn health_prints_the_report_and_its_exit_code_says_whether_it_has_issues() {
    let world = World::start();
    let service = world.service();
    for (code, health) in both(&world, &service, &["health", "--json"]) {
        assert_eq!((code, &health["healthy"]), (Some(0), &true.into()));
        assert_eq!(health["issues"], serde_json::json!([]));
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
    assert_eq!(
        (&key["rejected"], &key["at_most_over"]),
        (&2.into(), &0.into())
    );
    assert!(key["key"].as_str().expect("a key").starts_with("hash:"));

    let (code, shadows) = answer(&service.run(&["shadows", "--json"]));
    assert_eq!((code, names(&shadows["shadows"])), (Some(0), vec!["next"]));
    let next = &shadows["shadows"][0];
    assert_eq!(
        (&next["shadow_of"], &next["stricter"]),
        (&"api".into(), &1.into())
    );

    for command in ["top", "shadows"] {
        let run = world.direct(&[command, "--json"]);
        assert_eq!((run.code, &*run.stdout), (Some(2), ""), "{command}");
        assert!(run.stderr.contains("--admin"), "{}", run.stderr);
    }
    let unknown = service.run(&["top", "--policy", "none", "--json"]);
    assert_eq!((unknown.code, &*unknown.stdout), (Some(2), ""));
}
