//! Callers and their quota: the same for all contenders.

use std::{
    fmt::Write,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tollgate::{Key, Quota};

use crate::load::Rng;

const DAY: Duration = Duration::from_secs(86_400);

/// How much a key may take.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Units that come back in a period.
    pub requests: u64,
    /// The period.
    pub period: Duration,
    /// Units that can be taken at once.
    pub burst: u64,
}

impl Rule {
    /// So much that every decision admits and writes, and given back so slowly (500 an hour) that hardly a key's life ends
    /// between two requests: a contender must not be held up by keys that another one, being faster, keeps alive.
    pub fn ample(keys: usize) -> Self {
        if keys < 100 {
            // Every request is for one of few keys.
            Self::new(1_000_000, 50_000_000)
        } else {
            Self::new(84_000, 10_000)
        }
    }

    /// So little that a key is rejected after its first request.
    pub fn scarce() -> Self {
        Self::new(1, 1)
    }

    /// At once, and no more while a benchmark runs.
    pub fn at_once(burst: u64) -> Self {
        Self::new(100, burst)
    }

    /// So many per 30 days, all of them at once.
    pub fn monthly(requests: u64) -> Self {
        Self {
            requests,
            period: 30 * DAY,
            burst: requests,
        }
    }

    /// So many per week, with a burst.
    pub fn new(requests: u64, burst: u64) -> Self {
        Self {
            requests,
            period: 7 * DAY,
            burst,
        }
    }

    /// How long it takes for a unit to come back.
    pub fn interval(self) -> Duration {
        self.period / u32::try_from(self.requests).expect("a number of units")
    }

    /// As our own quota.
    pub fn quota(self) -> Quota {
        Quota::requests(self.requests)
            .per(self.period)
            .burst(self.burst)
    }
}

/// The callers of requests.
#[derive(Debug)]
pub enum Callers {
    /// Any of these, by the dice.
    Kept(Vec<Key>),
    /// Any of so many, whose key is made anew each time: too many to keep at hand.
    Made(usize),
    /// One after the other, each of them once.
    Each(AtomicUsize),
}

impl Callers {
    /// So many, whose keys are kept.
    pub fn kept(keys: usize) -> Self {
        Self::Kept((0..keys).map(|key| Key::new(name(key))).collect())
    }

    /// One after the other, each of them once.
    pub fn each() -> Self {
        Self::Each(AtomicUsize::new(0))
    }

    /// The caller of the next request.
    pub fn pick(&self, rng: &mut Rng) -> Key {
        match self {
            Self::Kept(keys) => keys[rng.below(keys.len())],
            Self::Made(keys) => made(rng.below(*keys)),
            Self::Each(next) => made(next.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// What a caller is called.
pub fn name(key: usize) -> String {
    format!("user:{key}")
}

/// So many callers' names, with `prefix` before them.
pub fn names(prefix: &str, keys: usize) -> Vec<String> {
    let name = |key| format!("{prefix}{}", name(key));
    (0..keys).map(name).collect()
}

fn made(key: usize) -> Key {
    let mut text = String::with_capacity(24);
    let written = write!(text, "user:{key}");
    debug_assert!(written.is_ok());
    Key::new(text)
}
