//! Requests to several processes at once, and an account of what they may be answered.

use tokio::task::JoinHandle;
use tollgate_tests::{plain_http, prelude::*};

/// Tasks for each process, each with a connection of its own.
const TASKS: usize = 2;

/// What was answered to requests under a policy whose windows do not end, on a clock that stands still: `limit - remaining` is the
/// number of requests admitted so far by all processes.
#[derive(Debug, Default)]
pub(crate) struct Account {
    sent: u64,
    rejected: u64,
    /// The count after each admitted request.
    counts: BTreeSet<u64>,
    /// What each process answered last.
    last: Vec<Option<Answer>>,
    faults: Vec<String>,
}

/// A response, if it is one of a limited request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    is_admitted: bool,
    limit: u64,
    remaining: u64,
}

/// A running load.
pub(crate) struct Load {
    account: Arc<Mutex<Account>>,
    ends: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Sends requests to each address until the load is ended.
    pub(crate) fn start(addresses: &[SocketAddr]) -> Self {
        let account = Arc::new(Mutex::new(Account {
            last: vec![None; addresses.len()],
            ..Account::default()
        }));
        let ends = Arc::<AtomicBool>::default();
        let senders = addresses.iter().enumerate();
        let senders = senders.flat_map(|sender| [sender; TASKS]);
        let tasks = senders.map(|(process, address)| {
            let url = format!("http://{address}/");
            tokio::spawn(repeat(process, url, account.clone(), ends.clone()))
        });
        Self {
            tasks: tasks.collect(),
            account,
            ends,
        }
    }

    fn with<T>(&self, read: impl FnOnce(&Account) -> T) -> T {
        read(&self.account.lock().expect("the account"))
    }

    /// Sends no more requests.
    pub(crate) async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a task ends well");
        }
    }

    /// How many requests were admitted.
    pub(crate) fn admitted(&self) -> u64 {
        self.with(|account| account.counts.len() as u64)
    }

    /// Whether the last request that each process answered was under this limit.
    pub(crate) fn is_limit_everywhere(&self, limit: u64) -> bool {
        self.with(|account| account.all_last(|last| last.limit == limit))
    }

    /// Whether the last request that each process answered was rejected under this limit.
    pub(crate) fn is_rejected_everywhere(&self, limit: u64) -> bool {
        let is_rejected = |last: Answer| last.limit == limit && !last.is_admitted;
        self.with(|account| account.all_last(is_rejected))
    }

    /// Fails on the first response that should not have been.
    pub(crate) fn check(&self) {
        let faults = self.with(|account| account.faults.clone());
        assert_eq!(faults, [""; 0]);
    }
}

async fn repeat(process: usize, url: String, account: Arc<Mutex<Account>>, ends: Arc<AtomicBool>) {
    // Each has a client of its own, and so a connection.
    let client = plain_http::client();
    while !ends.load(Ordering::Relaxed) {
        account.lock().expect("the account").sent += 1;
        let response = client.get(&url).send().await;
        let response = response.map_err(|error| error.to_string());
        account.lock().expect("the account").add(process, response);
        tokio::time::sleep(ms(1)).await;
    }
}

impl Account {
    fn add(&mut self, process: usize, response: Result<reqwest::Response, String>) {
        if let Err(fault) = response.and_then(|response| self.count(process, &response)) {
            self.faults.push(fault);
        }
    }

    fn count(&mut self, process: usize, response: &reqwest::Response) -> Result<(), String> {
        let answer = Answer::read(response);
        let answer = answer.ok_or_else(|| format!("a failed request: {response:?}"))?;
        self.last[process] = Some(answer);
        let Answer {
            limit, remaining, ..
        } = answer;
        if answer.is_admitted {
            let is_new = self.counts.insert(limit - remaining);
            let twice = || format!("two requests were admitted with {remaining} left of {limit}");
            return is_new.then_some(()).ok_or_else(twice);
        }
        self.rejected += 1;
        // Those that may have been admitted before: all but the rejected ones.
        let most = self.sent - self.rejected;
        let too_early = || format!("rejected under {limit} after {most} at most");
        (most >= limit).then_some(()).ok_or_else(too_early)
    }

    fn all_last(&self, is: impl Fn(Answer) -> bool) -> bool {
        self.last.iter().all(|last| last.is_some_and(&is))
    }
}

impl Answer {
    fn read(response: &reqwest::Response) -> Option<Self> {
        let is_admitted = match response.status().as_u16() {
            200 => true,
            429 => false,
            _ => return None,
        };
        let number = |field: &str, name: &str| {
            let field = response.headers().get(field)?.to_str().ok()?;
            let mut parameters = field.split(';');
            parameters.find_map(|parameter| parameter.strip_prefix(name)?.parse::<u64>().ok())
        };
        Some(Self {
            is_admitted,
            limit: number("ratelimit-policy", "q=")?,
            remaining: number("ratelimit", "r=")?,
        })
    }
}
