//! Callers and their quota: the same for all contenders.

use std::{
    fmt::Write,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tollgate::{Key, Quota};

use crate::load::Rng;

const DAY: Duration = Duration::from_secs(86_400);

/// Far longer than any run.
const LONG: Duration = Duration::from_secs(10_000);

/// Requests whose callers are drawn beforehand by Zipf's law.
const DRAWN: usize = 16_384;

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

    /// So many in each second, and as many at once.
    pub fn each_second(requests: u64) -> Self {
        Self {
            requests,
            period: Duration::from_secs(1),
            burst: requests,
        }
    }

    /// As a window's quota: what can be taken at once, in a window longer than any run unless all of it comes back in a period.
    pub fn window(self) -> (u64, Duration) {
        if self.burst == self.requests {
            (self.requests, self.period)
        } else {
            (self.burst, LONG)
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

    /// So many by Zipf's law with s = 1: the second has half of the first one's requests, the third a third.
    pub fn zipf(keys: usize) -> Self {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        let drawn = (0..DRAWN).map(|place| {
            let at = (place as f64 + 0.5) / DRAWN as f64 * sum;
            Key::new(name(sums.partition_point(|sum| *sum < at)))
        });
        Self::Kept(drawn.collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_by_zipfs_law_have_parts_that_fall_by_their_rank() {
        let Callers::Kept(drawn) = Callers::zipf(100) else {
            panic!("keys that are kept");
        };
        let requests = |key| {
            drawn
                .iter()
                .filter(|drawn| **drawn == Key::new(name(key)))
                .count()
        };
        let first = requests(0) as f64;
        for rank in [2.0, 5.0, 20.0, 100.0] {
            let part = requests(rank as usize - 1) as f64 * rank / first;
            assert!((0.95..1.05).contains(&part), "{rank}: {part}");
        }
        assert_eq!((0..100).map(requests).sum::<usize>(), DRAWN);
    }

    #[test]
    fn a_rule_as_a_window_takes_its_burst_at_once() {
        assert_eq!(Rule::each_second(10).window(), (10, Duration::from_secs(1)));
        assert_eq!(Rule::ample(1).window(), (50_000_000, LONG));
    }
}
