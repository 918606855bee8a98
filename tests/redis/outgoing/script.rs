//! Calls that wait, as text: what is sent, and what becomes of it, step by step.
//!
//! Steps stand between commas; what is expected stands after a colon:
//! - `send a: waits`: a call joins the queue; others are `admitted` at once, or `rejected 600ms`, which is their wait, or
//!   `rejected never`. It may `cost 3`, `under 10/s`, wait `for 300ms` at most, and only in a `queue 2`
//! - `poll a: admitted`: what has become of it by now; `await a: rejected`: in the end
//! - `drop a`: the call, or its admission
//! - `+1s`: time passes at once; `sleep 50ms`: tasks run meanwhile
//! - `left p: 1`: units of a policy
//! - `calls: 0`: of the store, since the last step of this kind; `calls` alone begins to count
//! - `passed: 1s`, or `passed: 1s to 1250ms`, since the beginning
//! - `block 60s`, `prolong 60s`, `unblock`, `unblock other` (another key), `reset p`
//! - `open`, `close`: whether a slow store returns its results

use tollgate_tests::{prelude::*, script::duration};

use crate::outgoing::{
    slow_store::Slow,
    support::{TEST_TIMEOUT, *},
};

pub(crate) async fn play((limiter, time): (Limiter, Time), script: &str) {
    Actor::new(limiter, time, None).play(script).await;
}

pub(crate) async fn play_slowly((limiter, store, time): (Limiter, Slow, Time), script: &str) {
    Actor::new(limiter, time, Some(store)).play(script).await;
}

struct Actor {
    limiter: Limiter,
    time: Time,
    store: Option<Slow>,
    waiting: HashMap<String, Waiter>,
    admitted: HashMap<String, Admission>,
    /// The calls of the store that were counted before.
    counted: u64,
}

impl Actor {
    fn new(limiter: Limiter, time: Time, store: Option<Slow>) -> Self {
        Self {
            limiter,
            time,
            store,
            waiting: HashMap::new(),
            admitted: HashMap::new(),
            counted: 0,
        }
    }

    async fn play(mut self, script: &str) {
        // With a full budget of tokio's, a call is decided when it is polled.
        tokio::task::yield_now().await;
        for step in script.split(", ") {
            let _case = Case(format!("{step:?} of {script:?}"));
            let (action, expected) = step.split_once(": ").unwrap_or((step, ""));
            let found = self.step(action, expected).await;
            assert_eq!(found, expected);
        }
    }

    async fn step(&mut self, action: &str, expected: &str) -> String {
        let words: Vec<&str> = action.split(' ').collect();
        let is_open = |open| {
            self.store
                .as_ref()
                .map(|store| store.open.send_replace(open))
        };
        match words[..] {
            ["send", name, ref settings @ ..] => {
                let mut call: Waiter = Box::pin(self.wait(settings).into_future());
                let result = poll_once(&mut call);
                return self.keep(name, call, result, expected);
            }
            ["poll", name] => {
                let mut call = self.waiting.remove(name).expect("it waits");
                let result = poll_once(&mut call);
                return self.keep(name, call, result, expected);
            }
            ["await", name] => {
                let mut call = self.waiting.remove(name).expect("it waits");
                let result = (&mut call).await;
                return self.keep(name, call, Some(result), expected);
            }
            ["drop", name] => drop((self.waiting.remove(name), self.admitted.remove(name))),
            ["left", policy] => {
                let seen = self.limiter.peek([(policy, KEY)]).await;
                return seen.expect("a response").left(policy).to_string();
            }
            ["calls"] => {
                let calls = self.time.calls();
                let since = calls - std::mem::replace(&mut self.counted, calls);
                match expected {
                    "" => {}
                    _ => return since.to_string(),
                }
            }
            ["passed"] => {
                let (least, most) = expected.split_once(" to ").unwrap_or((expected, expected));
                let (passed, bounds) = (self.time.passed(), duration(least)..=duration(most));
                assert!(bounds.contains(&passed), "{passed:?}");
                return expected.to_owned();
            }
            ["sleep", time] => tokio::time::sleep(duration(time)).await,
            ["block", time] => self
                .limiter
                .block(KEY, duration(time))
                .await
                .expect("a ban"),
            ["prolong", time] => {
                let prolonged = self.limiter.prolong_block(KEY, duration(time)).await;
                prolonged.expect("a ban");
            }
            ["unblock"] => drop(self.limiter.unblock(KEY).await.expect("a response")),
            ["unblock", other] => {
                let unblocked = self.limiter.unblock([("abuse", Key::new(other))]).await;
                unblocked.expect("a response");
            }
            ["reset", policy] => drop(
                self.limiter
                    .reset([(policy, KEY)])
                    .await
                    .expect("a response"),
            ),
            ["open"] => assert!(is_open(true).is_some(), "it is slow"),
            ["close"] => assert!(is_open(false).is_some(), "it is slow"),
            [by] => tokio::time::advance(duration(by.strip_prefix('+').expect(by))).await,
            _ => panic!("no step"),
        }
        String::new()
    }

    fn wait(&self, settings: &[&str]) -> Wait {
        let timeout = match settings {
            [.., "for", timeout] => duration(timeout),
            _ => TEST_TIMEOUT,
        };
        let wait = self.limiter.wait(KEY, timeout);
        settings.chunks(2).fold(wait, |wait, pair| match pair {
            ["cost", units] => wait.cost(units.parse().expect("units")),
            ["under", text] => wait.quota_for("p", stores::quota(text)),
            ["queue", most] => wait.queue(most.parse().expect("a number")),
            ["for", _] => wait,
            _ => panic!("no setting"),
        })
    }

    /// Keeps a call that goes on, or its admission; returns what has become of it, as far as it is expected.
    fn keep(
        &mut self,
        name: &str,
        call: Waiter,
        result: Option<Result<Admission, Rejected>>,
        expected: &str,
    ) -> String {
        let rejected = match result {
            None => {
                self.waiting.insert(name.to_owned(), call);
                return "waits".to_owned();
            }
            Some(Ok(admission)) => {
                self.admitted.insert(name.to_owned(), admission);
                return "admitted".to_owned();
            }
            Some(Err(rejected)) => rejected,
        };
        let from_cache = rejected.decision().source() == DecisionSource::RejectionCache;
        let wait = match rejected.retry_after() {
            _ if expected == "rejected" => String::new(),
            RetryAfter::In(wait) => format!(" {}ms", wait.as_millis()),
            RetryAfter::Never => " never".to_owned(),
            other => format!(" {other:?}"),
        };
        match expected.ends_with(" from cache") && from_cache {
            true => format!("rejected{wait} from cache"),
            false => format!("rejected{wait}"),
        }
    }
}
