//! Batches at work: requests that come while a call is in flight share the next one.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tollgate::{
    Limiter, Policy, Quota, RedisStore,
    observe::{Observer, StoreCallEvent},
};

use crate::{
    Result,
    gate::Gate,
    redis::{Redis, TIMEOUT, until},
};

/// The time from a call to its reply, in microseconds: replies are let through at its multiples.
const ROUND_TRIP_US: u64 = 1_000;

/// When requests come, in microseconds: from, to, and one each so many.
const ARRIVALS: [(u64, u64, u64); 4] = [
    (0, 100, 100),
    (150, 950, 100),
    (1_050, 2_000, 80),
    (2_200, 3_000, 200),
];

/// The callers, who take turns.
const KEYS: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// When it came, in microseconds.
    pub came: u64,
    /// When its call was sent.
    pub sent: u64,
    /// When it was answered.
    pub answered: u64,
}

/// A call of the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The requests in it.
    pub requests: usize,
    /// The operations on counters in it: one for all equal requests.
    pub keys: usize,
}

/// What was sent and answered when.
#[derive(Debug)]
pub struct Run {
    /// The requests, in the order in which they came.
    pub requests: Vec<Request>,
    /// The calls, in their order.
    pub calls: Vec<Call>,
}

/// Counts the requests of each call.
#[derive(Debug, Default)]
struct Calls(Mutex<Vec<Call>>);

impl Calls {
    fn get(&self) -> Vec<Call> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Observer for Calls {
    fn on_store_call(&self, event: &StoreCallEvent<'_>) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(Call {
            requests: event.requests,
            keys: event.counter_ops,
        });
    }
}

/// Sends requests through one connection, on which a round trip takes a millisecond of the clock.
pub async fn run() -> Result<Run> {
    let redis = Redis::start();
    let gate = Gate::to(redis.server.addr()).await?;
    let store = RedisStore::builder()
        .url(format!("redis://{}", gate.addr))
        .timeout(TIMEOUT)
        .max_overrides(0)
        .connections(1)
        .rejection_cache_staleness(Duration::ZERO);
    let calls = Arc::new(Calls::default());
    let limiter = Limiter::builder()
        .store(store.build()?)
        .policy(Policy::new("api", Quota::requests(1_000).per_minute()))
        .observe(calls.clone())
        .build()?;
    // Connects, and loads the script.
    let _ = limiter.check("first").await;
    gate.close();
    let (first_call, mut replies) = (calls.get().len(), gate.replies());

    let arrivals = ARRIVALS.iter();
    let arrivals = arrivals.flat_map(|(from, to, each)| (*from..*to).step_by(*each as usize));
    let mut arrivals = arrivals.peekable();
    let mut requests = Vec::new();
    // Those that are not answered yet, and how many of them, the first, have been sent.
    let (mut waiting, mut in_flight, mut sent_at) = (Vec::new(), 0, 0);
    while arrivals.peek().is_some() || !waiting.is_empty() {
        let answer = sent_at + ROUND_TRIP_US;
        let now = match arrivals.next_if(|came| in_flight == 0 || *came < answer) {
            Some(came) => {
                redis.set(Duration::from_micros(came));
                let key = KEYS[(requests.len() + waiting.len()) % KEYS.len()];
                waiting.push((came, tokio::spawn(limiter.check(key).into_future())));
                came
            }
            None => {
                redis.set(Duration::from_micros(answer));
                let answered = calls.get().len();
                gate.let_through();
                let what = "a call is answered";
                until(what, async || calls.get().len() == answered + 1).await?;
                for (came, task) in waiting.drain(..in_flight) {
                    if !task.await?.is_admitted() {
                        return Err("a request was rejected".into());
                    }
                    requests.push(Request {
                        came,
                        sent: sent_at,
                        answered: answer,
                    });
                }
                in_flight = 0;
                answer
            }
        };
        if in_flight == 0 && !waiting.is_empty() {
            replies += 1;
            until("a call is sent", async || gate.replies() == replies).await?;
            (in_flight, sent_at) = (waiting.len(), now);
        } else {
            // Until it is in the queue.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
    }
    let calls = calls.get().split_off(first_call);
    let in_calls: usize = calls.iter().map(|call| call.requests).sum();
    if in_calls != requests.len() || gate.replies() != replies {
        return Err(format!("{} requests, but {calls:?}", requests.len()).into());
    }
    Ok(Run { requests, calls })
}
