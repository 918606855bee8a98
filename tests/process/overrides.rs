//! Two processes and the command line on one Redis: overrides that are set and lifted meanwhile.

use std::process::Command;

use testkit::Clock;
use tokio::net::TcpListener;
use tollgate::admin::Admin;
use tollgate_tests::{
    child,
    example::{Example, command_line},
    plain_http,
    prelude::*,
    world::START,
};

const URL: &str = "TOLLGATE_OVERRIDES_URL";
const TOKEN: &str = "a-token-of-the-operators";

/// Requests a day of each user.
const LIMIT: u64 = 50;

/// A UUID, which is shown in another form than it is stored.
const ALICE: &str = "550e8400-e29b-41d4-a716-446655440000";

/// Runs as a process of its own, below: a service with an admin API, until it is killed. It does nothing in a plain run of the
/// tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let serve = async {
        let store = RedisStore::builder().url(url).timeout(TEST_TIMEOUT).built();
        let policy = Policy::new("api", Quota::requests(LIMIT).per_day());
        let policy = policy.strategy(FixedWindow).key(extract::header("x-user"));
        let layer = RateLimitLayer::builder()
            .store(store)
            .policy(policy)
            .built();
        let admin = Admin::new(&layer).token("ops", TOKEN).router();
        let app = Router::new()
            .route("/", get(async || "Hello!"))
            .layer(layer)
            .nest_service("/admin", admin.expect("an admin API"));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        println!("\nListening on http://{address}.");
        axum::serve(listener, app).await.expect("it serves");
    };
    // Its parent kills it; should that die, this ends by itself.
    let _ = tokio::time::timeout(2 * TEST_TIMEOUT, serve).await;
}

fn process(server: &Server) -> Example {
    let mut command = child::test(module_path!(), "child_process");
    command.env(URL, server.url());
    Example::of(command)
}

/// Runs the command line against the admin API of a process.
async fn tollgate(process: &Example, arguments: &str) {
    let mut command = Command::new(command_line());
    command.args(arguments.split(' '));
    let admin = format!("http://{}/admin", process.address());
    command.args(["--admin", &*admin, "-y"]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("no panic").expect("the program is built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
}

/// A request of a user to a process: its limit, and whether it was admitted.
async fn ask(client: &reqwest::Client, process: &Example, user: &str) -> (u64, bool) {
    let request = client.get(format!("http://{}/", process.address()));
    let response = request.header("x-user", user).send().await;
    let response = response.expect("a response");
    let status = response.status().as_u16();
    assert!([200, 429].contains(&status), "{response:?}");
    let field = &response.headers()["ratelimit-policy"];
    let mut parameters = field.to_str().expect("text").split(';');
    let limit = parameters.find_map(|parameter| parameter.strip_prefix("q=")?.parse().ok());
    (limit.expect("a limit"), status == 200)
}

/// Sends requests of a user to all processes at once until each rejects under this limit; returns how many were admitted.
async fn use_up(processes: &[Example], user: &str, limit: u64) -> u64 {
    let client = plain_http::client();
    let mut admitted = 0;
    until("it is used up under this limit everywhere", async || {
        let pending = processes.iter().map(|process| ask(&client, process, user));
        let answers = join_all(pending).await;
        let many = answers.iter().filter(|(_, is_admitted)| *is_admitted);
        admitted += many.count() as u64;
        answers.iter().all(|answer| *answer == (limit, false))
    })
    .await;
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_sets_and_lifts_the_limit_of_one_user_in_two_processes() {
    // The window does not end.
    let server = Server::builder().clock(&Clock::at(START)).start();
    let processes = [process(&server), process(&server)];
    for user in [ALICE, "bob"] {
        assert_eq!(use_up(&processes, user, LIMIT).await, LIMIT);
    }
    let set = |quota: &str| format!("override set api {ALICE} --quota {quota}");
    tollgate(&processes[0], &set("200/day")).await;
    assert_eq!(use_up(&processes, ALICE, 200).await, 200 - LIMIT);
    let late = [process(&server)];
    assert_eq!(use_up(&late, ALICE, 200).await, 0);

    tollgate(&processes[1], &set("120/day")).await;
    assert_eq!(use_up(&processes, ALICE, 120).await, 0);
    tollgate(&processes[0], &format!("reset {ALICE} --policy api")).await;
    assert_eq!(use_up(&processes, ALICE, 120).await, 120);
    // Until each process has read that it is lifted, it rejects under the other limit.
    tollgate(&processes[0], &format!("override remove api {ALICE}")).await;
    assert_eq!(use_up(&processes, ALICE, LIMIT).await, 0);
    tollgate(&processes[1], &format!("reset {ALICE} --policy api")).await;
    assert_eq!(use_up(&processes, ALICE, LIMIT).await, LIMIT);
    // No other user was concerned.
    assert_eq!(use_up(&processes, "bob", LIMIT).await, 0);
}
