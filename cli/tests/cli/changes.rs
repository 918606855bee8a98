//! Changes hold in all processes, and are confirmed.

use std::time::{Duration, Instant};

use crate::{
    program::{Run, TEST_TIMEOUT, with_input},
    served::{API_KEY, Service, World},
};

/// Waits until the cached rejections of all services are stale, and each admits or rejects the key as expected. Within a day
/// nothing but the command makes that true.
#[track_caller]
fn until_all(services: &[Service], admit: bool) {
    let start = Instant::now();
    for service in services {
        while service.admits() != admit {
            assert!(start.elapsed() < TEST_TIMEOUT, "admits: {}", !admit);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends requests until each service has rejected the key, and has cached that.
fn use_up(services: &[Service]) {
    for service in services {
        while service.admits() {}
    }
}

#[track_caller]
fn succeeded(run: &Run) -> &str {
    assert_eq!((run.code, &*run.stderr), (Some(0), ""), "{}", run.stdout);
    for secret in [API_KEY, "5f1c"] {
        assert!(!run.stdout.contains(secret), "{}", run.stdout);
    }
    &run.stdout
}

#[test]
fn a_reset_and_a_credit_take_effect_in_all_processes() {
    let world = World::start();
    let services = [world.service(), world.service()];
    use_up(&services);
    let run = services[1].run(&["reset", API_KEY, "-y"]);
    let shown = succeeded(&run).lines().nth(1).expect("a row");
    assert!(shown.ends_with("  0            3            3"), "{shown}");
    until_all(&services, true);

    use_up(&services);
    let run = world.direct(&["credit", "api", API_KEY, "--units", "2", "-y"]);
    assert!(
        succeeded(&run).starts_with("credited 2 units\n"),
        "{}",
        run.stdout
    );
    until_all(&services, true);
}

#[test]
fn a_block_and_its_end_take_effect_in_all_processes() {
    let world = World::start();
    let services = [world.service(), world.service()];
    let run = services[1].run(&["block", API_KEY, "--for", "1day", "-y"]);
    assert!(succeeded(&run).contains("blocked  hash:"), "{}", run.stdout);
    until_all(&services, false);

    let ends_at = run.stdout.split_whitespace().last().expect("an end");
    let unblock = ["unblock", API_KEY, "-y"];
    let run = world.direct(&unblock);
    let lifted = succeeded(&run).trim_end();
    assert!(lifted.ends_with(&format!("  until {ends_at}")), "{lifted}");
    until_all(&services, true);

    let run = services[1].run(&unblock);
    let nothing = "  no\nnothing was lifted: the key was not blocked\n";
    assert!(succeeded(&run).ends_with(nothing), "{}", run.stdout);
}

#[test]
fn a_change_without_a_terminal_has_to_be_confirmed_by_an_option() {
    let world = World::start();
    let services = [world.service()];
    use_up(&services);
    for arguments in [
        &["reset", API_KEY][..],
        &["unblock", API_KEY],
        &["block", API_KEY, "--for", "1h"],
        &["credit", "api", API_KEY, "--units", "1"],
    ] {
        let run = world.direct(arguments);
        assert_eq!((run.code, &*run.stdout), (Some(2), ""));
        run.assert_stderr("use -y");
    }
    assert!(!services[0].admits());
}

#[test]
fn a_key_is_read_from_standard_input() {
    let world = World::start();
    let services = [world.service()];
    use_up(&services);
    let arguments = ["reset", "-", "-y", "--config", &world.file];
    let run = with_input(&arguments, &format!("{API_KEY}\n"));
    succeeded(&run);
    until_all(&services, true);
    let run = with_input(&arguments, "");
    assert_eq!(run.code, Some(2));
}
