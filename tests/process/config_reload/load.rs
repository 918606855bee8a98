//! Requests to several processes at once, and an account of what they may be answered.

use tollgate_tests::{plain_http, prelude::*};

use crate::load;

/// Tasks for each process, each with a connection of its own.
const TASKS: usize = 2;

/// What was answered to requests under two policies on a clock that stands still: `api`, whose windows do not end, so that
/// `limit - remaining` is the number of requests admitted so far by all processes, and `share`, of which each request takes
/// one part of `limit`.
#[derive(Debug, Default)]
pub(crate) struct Account {
    sent: u64,
    rejected: u64,
    /// The count after each admitted request.
    counts: BTreeSet<u64>,
    /// What is used of the share.
    used: f64,
    /// What each process answered last.
    last: Vec<Option<Answer>>,
    faults: Vec<String>,
}

/// A response, if it is one of a limited request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    is_admitted: bool,
    api: Status,
    share: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    limit: u64,
    remaining: u64,
}

pub(crate) type Load = load::Load<Account>;

/// Sends requests to each address until the load is ended.
pub(crate) fn start(addresses: &[SocketAddr]) -> Load {
    let account = Account {
        last: vec![None; addresses.len()],
        ..Account::default()
    };
    let senders = addresses.iter().enumerate();
    let senders = senders.flat_map(|sender| [sender; TASKS]);
    let requests = senders.map(|(process, address)| {
        // Each has a client of its own, and so a connection.
        let request = plain_http::client().get(format!("http://{address}/"));
        (process, request)
    });
    Load::start(account, requests)
}

impl Load {
    /// How many requests were admitted.
    pub(crate) fn admitted(&self) -> u64 {
        self.with(|account| account.counts.len() as u64)
    }

    /// Whether the last request that each process answered was under this limit.
    pub(crate) fn is_limit_everywhere(&self, limit: u64) -> bool {
        self.with(|account| account.all_last(|last| last.api.limit == limit))
    }

    /// Whether the last request that each process answered was rejected under this limit.
    pub(crate) fn is_rejected_everywhere(&self, limit: u64) -> bool {
        let is_rejected = |last: Answer| last.api.limit == limit && !last.is_admitted;
        self.with(|account| account.all_last(is_rejected))
    }

    /// Asserts that each process knows what is used of the share, to a unit for each limit that there was.
    pub(crate) fn assert_share_is_used(&self, limits: u64) {
        self.with(|account| {
            let differs = |Status { limit, remaining }| {
                let used = (limit - remaining) as f64;
                (used - account.used * limit as f64).abs() > limits as f64
            };
            let (used, last) = (account.used, &account.last);
            assert!(
                account.all_last(|last| !differs(last.share)),
                "{used}: {last:?}"
            );
        });
    }

    /// Fails on the first response that should not have been.
    pub(crate) fn check(&self) {
        let faults = self.with(|account| account.faults.clone());
        assert_eq!(faults, [""; 0]);
    }
}

impl load::Account for Account {
    type Sender = usize;

    fn send(&mut self) {
        self.sent += 1;
    }

    fn add(&mut self, process: usize, response: reqwest::Result<reqwest::Response>) {
        let response = response.map_err(|error| error.to_string());
        if let Err(fault) = response.and_then(|response| self.count(process, &response)) {
            self.faults.push(fault);
        }
    }
}

impl Account {
    fn count(&mut self, process: usize, response: &reqwest::Response) -> Result<(), String> {
        let answer = Answer::read(response);
        let answer = answer.ok_or_else(|| format!("a failed request: {response:?}"))?;
        self.last[process] = Some(answer);
        let Status { limit, remaining } = answer.api;
        if answer.is_admitted {
            self.used += 1.0 / answer.share.limit as f64;
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
        let number = |field: &str, policy: &str, name: &str| {
            let field = response.headers().get(field)?.to_str().ok()?;
            let item = field.split(", ").find(|item| item.starts_with(policy))?;
            let mut parameters = item.split(';');
            parameters.find_map(|parameter| parameter.strip_prefix(name)?.parse::<u64>().ok())
        };
        let status = |policy| {
            Some(Status {
                limit: number("ratelimit-policy", policy, "q=")?,
                remaining: number("ratelimit", policy, "r=")?,
            })
        };
        Some(Self {
            is_admitted,
            api: status("\"api\"")?,
            share: status("\"share\"")?,
        })
    }
}
