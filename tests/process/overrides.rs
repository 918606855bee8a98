//! Two processes and the command line on one Redis, under load: overrides that are set and lifted meanwhile.

use std::process::Command;

use testkit::Clock;
use tokio::net::TcpListener;
use tollgate::admin::Admin;
use tollgate_tests::{
    child,
    example::{Example, command_line},
    model::{Limit, Rule, State},
    plain_http,
    prelude::*,
    world::START,
};

use crate::load::{self, Load};

const URL: &str = "TOLLGATE_OVERRIDES_URL";
const TOKEN: &str = "a-token-of-the-operators";

/// Requests a day of each user.
const LIMIT: u64 = 50;

const DAY: i128 = 86_400_000_000;

/// Tasks for each process and user.
const TASKS: usize = 2;

/// A UUID, which is shown in another form than it is stored.
const ALICE: &str = "550e8400-e29b-41d4-a716-446655440000";

const USERS: [&str; 2] = [ALICE, "bob"];

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

/// The number of a process, a user, and the number of a task, which sends one request after the other.
type Sender = (usize, &'static str, usize);

/// What was answered.
#[derive(Debug, Default)]
struct Account {
    admitted: BTreeMap<&'static str, u64>,
    /// By process, user and task: the limit, and whether the request was admitted.
    last: BTreeMap<Sender, (u64, bool)>,
    faults: Vec<String>,
}

impl load::Account for Account {
    type Sender = Sender;

    fn add(&mut self, by: Sender, response: reqwest::Result<reqwest::Response>) {
        let (_, user, _) = by;
        match response.map(|response| (response.status().as_u16(), limit(&response))) {
            Ok((status @ (200 | 429), Some(limit))) => {
                let is_admitted = status == 200;
                *self.admitted.entry(user).or_default() += u64::from(is_admitted);
                self.last.insert(by, (limit, is_admitted));
            }
            other => self.faults.push(format!("{user}: {other:?}")),
        }
    }
}

/// The limit of a response.
fn limit(response: &reqwest::Response) -> Option<u64> {
    let field = response.headers().get("ratelimit-policy")?.to_str().ok()?;
    let mut parameters = field.split(';');
    parameters.find_map(|parameter| parameter.strip_prefix("q=")?.parse().ok())
}

/// Requests of all users to all processes.
fn start(processes: &[Example]) -> Load<Account> {
    let mut requests = Vec::new();
    for (process, example) in processes.iter().enumerate() {
        for user in USERS {
            for task in 0..TASKS {
                let request = plain_http::client().get(format!("http://{}/", example.address()));
                requests.push(((process, user, task), request.header("x-user", user)));
            }
        }
    }
    Load::start(Account::default(), requests)
}

impl Load<Account> {
    /// Waits until the last answer to each task of this user is a rejection under this limit: then no answer to an admitted request is
    /// on its way.
    async fn until_rejected(&self, user: &str, limit: u64) {
        let is_used_up = |account: &Account| {
            assert_eq!(account.faults, [""; 0]);
            let mut of_user = account.last.iter().filter(|((_, own, _), _)| *own == user);
            account.last.len() == 2 * USERS.len() * TASKS
                && of_user.all(|(_, last)| *last == (limit, false))
        };
        let what = "it is used up under this limit everywhere";
        until(what, async || self.with(is_used_up)).await;
    }

    fn admitted(&self, user: &str) -> u64 {
        self.with(|account| account.admitted.get(user).copied().unwrap_or_default())
    }
}

/// What the model admits of requests without end, under one quota after the other, in a window that does not end.
fn admitted_by_model(quotas: &[u64]) -> u64 {
    let (mut state, now, mut admitted) = (State::default(), 1, 0);
    for quota in quotas {
        let limit = Limit::counted(Rule::Window { period: DAY }, *quota);
        let room = limit.room(&mut state, now, 0).max(0);
        limit.charge(&mut state, now, 0, room);
        admitted += room as u64;
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_sets_and_lifts_the_limit_of_one_user_in_two_processes_under_load() {
    // The window does not end.
    let server = Server::builder().clock(&Clock::at(START)).start();
    let processes = [process(&server), process(&server)];
    let load = start(&processes);
    for user in USERS {
        load.until_rejected(user, LIMIT).await;
        assert_eq!(load.admitted(user), admitted_by_model(&[LIMIT]));
    }

    tollgate(
        &processes[0],
        &format!("override set api {ALICE} --quota 200/day"),
    )
    .await;
    load.until_rejected(ALICE, 200).await;
    assert_eq!(load.admitted(ALICE), admitted_by_model(&[LIMIT, 200]));
    let late = process(&server);
    let client = plain_http::client();
    until("a process that starts meanwhile has it", async || {
        let request = client.get(format!("http://{}/", late.address()));
        let response = request.header("x-user", ALICE).send().await;
        limit(&response.expect("a response")) == Some(200)
    })
    .await;

    tollgate(
        &processes[1],
        &format!("override set api {ALICE} --quota 120/day"),
    )
    .await;
    load.until_rejected(ALICE, 120).await;
    let replaced = admitted_by_model(&[LIMIT, 200, 120]);
    assert_eq!(load.admitted(ALICE), replaced);

    // What is used comes back while the override is in force, and it is lifted before that is used up, or not.
    tollgate(&processes[0], &format!("reset {ALICE} --policy api")).await;
    tollgate(&processes[0], &format!("override remove api {ALICE}")).await;
    load.until_rejected(ALICE, LIMIT).await;
    let meanwhile = load.admitted(ALICE) - replaced;
    let [least, most] = [LIMIT, 120].map(|quota| admitted_by_model(&[quota]));
    assert!((least..=most).contains(&meanwhile), "{meanwhile}");

    tollgate(&processes[1], &format!("reset {ALICE} --policy api")).await;
    let lifted = replaced + meanwhile + admitted_by_model(&[LIMIT]);
    until("it is admitted again", async || {
        load.admitted(ALICE) == lifted
    })
    .await;
    load.until_rejected(ALICE, LIMIT).await;
    assert_eq!(load.admitted(ALICE), lifted);
    // No other user was concerned.
    assert_eq!(load.admitted("bob"), admitted_by_model(&[LIMIT]));
    load.end().await;
}
