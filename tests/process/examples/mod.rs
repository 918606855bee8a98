//! The examples do what they claim, beside what `examples/README.md` shows, which `printed` runs: each is started as its reader
//! would start it, on a clock that stands still, and called over a socket.

mod axum_full;
mod charging;
mod greeter;
mod login;
mod operated;
mod outgoing;
mod proxy;
mod websocket;

use tollgate_tests::{
    example::{Example, HttpResponse, Stage},
    prelude::*,
    repository,
};

/// A server that is down: nothing listens on this port, and no test gets it.
const DOWN: (&str, &str) = ("REDIS_URL", "redis://127.0.0.1:1");

/// Sends requests until so many were admitted: a refund on Redis may still be in flight when the response is here. Asserts that
/// no more are, and returns the last rejection.
fn admits(quota: usize, ask: impl Fn() -> HttpResponse) -> HttpResponse {
    let (start, mut admitted) = (Instant::now(), 0);
    while admitted < quota {
        let response = ask();
        assert!([200, 429].contains(&response.status), "{response:?}");
        assert!(start.elapsed() < TEST_TIMEOUT, "{admitted}: {response:?}");
        admitted += usize::from(response.status == 200);
    }
    let rejected = [ask(), ask()];
    assert_eq!(
        rejected.each_ref().map(|response| response.status),
        [429; 2]
    );
    let [_, rejected] = rejected;
    rejected
}

/// The limits of `configured`, in the format that is not its default.
fn yaml() -> String {
    let file = repository("examples/configured/limits.yaml");
    file.to_string_lossy().into_owned()
}

#[test]
fn two_processes_on_one_redis_share_the_count_of_a_clients_address() {
    let yaml = yaml();
    for (name, variables, key) in [
        ("quickstart", &[][..], "tg:g3:burst:127.0.0.1"),
        ("configured", &[("LIMITS", &*yaml)], "tg:g3:api:127.0.0.1"),
    ] {
        let stage = Stage::on_redis();
        let examples = [&[], variables].map(|variables| stage.start(name, variables));
        let ask = |n: usize| examples[n % 2].get("/", &[]).status;
        let statuses: Vec<u16> = (0..12).map(ask).collect();
        assert_eq!(statuses, [&[200; 10][..], &[429; 2]].concat(), "{name}");
        let keys = stage.server().keys();
        assert!(keys.contains(&key.to_owned()), "{keys:?}");
        assert_eq!(stage.server().immortal_keys(), [""; 0]);
        for example in examples {
            // Such as that it doesn't know its clients.
            assert!(!example.output().contains("ERROR"), "{}", example.output());
        }
    }
}

#[test]
fn both_files_of_configured_say_the_same() {
    let toml = repository("examples/configured/limits.toml");
    let [toml, yaml] =
        [toml, yaml().into()].map(|file: PathBuf| Document::load(file).expect("a document"));
    assert_eq!(toml, yaml);
}

#[test]
fn the_processes_of_llm_client_get_all_their_calls_answered_in_process_and_on_redis() {
    for (stage, processes) in [(Stage::in_process(), 1), (Stage::on_redis(), 2)] {
        // No more than the account has, since no time passes.
        let printed = stage.run("llm_client", &[("CALLS", "5")]);
        for process in 1..=processes {
            let answered = format!("process {process}: 5 calls answered\n");
            assert!(printed.contains(&answered), "{printed}");
        }
        let calls = 5 * processes;
        let last = format!("the provider: {calls} calls answered, 0 refused\n");
        assert!(printed.ends_with(&last), "{printed}");
    }
}

#[test]
fn two_runs_of_threads_on_one_redis_share_the_quota() {
    let stage = Stage::on_redis();
    for acmes in ["5 lines masked, 2 left out", "0 lines masked, 7 left out"] {
        let printed = stage.run("threads", &[]);
        let globexs = "2 lines masked, 0 left out";
        assert_eq!(printed, format!("acme: {acmes}\nglobex: {globexs}\n"));
    }
}

#[test]
fn quickstart_logs_that_it_limits_no_client_while_redis_is_down() {
    let example = Example::start("quickstart", &[DOWN]);
    let response = example.get("/", &[]);
    assert_eq!((response.status, response.field("ratelimit")), (200, None));
    let output = example.output_until("rate limit store failed");
    assert!(output.contains("WARN"), "{output}");
}

#[test]
fn custom_key_gives_each_tenant_three_a_minute_on_each_path() {
    let example = Stage::in_process().start("custom_key", &[]);
    let ask = |path: &str, tenant: &str| example.get(path, &[("x-tenant", tenant)]);
    admits(3, || ask("/reports", "acme"));
    for (path, tenant) in [
        ("/search", "acme"),
        ("/reports", "globex"),
        ("/search", "globex"),
    ] {
        let response = ask(path, tenant);
        let left = Some(r#""tenants";r=2;t=40"#);
        assert_eq!((response.status, response.field("ratelimit")), (200, left));
    }
    assert_eq!(ask("/reports", "\u{ff}").status, 400);
    assert_eq!(ask("/nowhere", "acme").status, 404);
}
