//! Commands that change nothing.

use serde_json::Value;

use crate::served::{API_KEY, World};

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
        "POLICY   ROLE           QUOTA  STRATEGY  KEY\n\
         api      live           3/day  gcra      header:x-api-key\n\
         blocked  ban            1/day  ban 1day  header:x-api-key\n\
         next     shadow of api  2/day  gcra      header:x-api-key\n"
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
    assert_eq!(
        (&status["remaining"], &status["limit"]),
        (&2.into(), &3.into())
    );
    let key = status["key"].as_str().expect("a key");
    assert!(key.starts_with("hash:"), "{key}");
    assert!(!run.stdout.contains(API_KEY));

    let again = world.direct(&["peek", "api", key, "--json"]);
    assert_eq!(json(&again.stdout)["remaining"], 2);
    let table = world.direct(&["peek", "api", key]);
    assert!(table.stdout.starts_with("POLICY  KEY "), "{}", table.stdout);
    assert!(
        table.stdout.contains("  2     3      yes       0      "),
        "{}",
        table.stdout
    );
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
fn shadow_policies_are_compared_with_live_ones() {
    let world = World::start();
    let service = world.service();
    for _ in 0..3 {
        assert!(service.admits());
    }
    let run = service.run(&["shadows"]);
    assert_eq!(
        run.stdout,
        "POLICY  IN PLACE OF  EVALUATED  STRICTER  LOOSER\n\
         next    api          3          1         0\n"
    );
    let run = world.direct(&["shadows"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("--admin"), "{}", run.stderr);
}
