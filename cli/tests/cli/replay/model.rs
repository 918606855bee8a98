//! A straightforward simulation of three policies, in integers.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::log::Logged;

/// The document that the model is of.
pub(crate) const DOCUMENT: &str = r#"
[policies.burst]
quota = "2/s burst 20"

[policies.window]
quota = "150/10min"
strategy = "fixed_window"

[policies.log]
quota = "400/min"
strategy = "sliding_log"
key = "path"
"#;

pub(crate) const POLICIES: [&str; 3] = ["burst", "window", "log"];

const SECOND: i64 = 1_000_000;

/// What the simulation has found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) rejected: u64,
    /// Of each policy: the rejections of each key.
    pub(crate) policies: [BTreeMap<String, u64>; 3],
}

/// Simulates the policies on the requests, in the order of their arrival.
pub(crate) fn simulate(requests: &[Logged]) -> Found {
    let mut by_arrival: Vec<_> = requests.iter().enumerate().collect();
    by_arrival.sort_by_key(|(line, request)| (request.arrived, *line));
    let mut found = Found::default();
    // The theoretical arrival time of each client.
    let mut arrival_times: HashMap<u32, i64> = HashMap::new();
    // The end and the count of each client's window.
    let mut windows: HashMap<u32, (i64, u64)> = HashMap::new();
    // When each path was requested.
    let mut logs: HashMap<u32, VecDeque<i64>> = HashMap::new();
    for (_, request) in by_arrival {
        let now = request.arrived;
        let interval = SECOND / 2;
        let tat = arrival_times.get(&request.client).copied().unwrap_or(0);
        let tat = tat.max(now) + interval;
        let burst_rejects = tat - now > 20 * interval;

        let window = windows.get(&request.client).copied();
        let window = window.filter(|(ends, _)| *ends > now);
        let (ends, count) = window.unwrap_or((now + 600 * SECOND, 0));
        let window_rejects = count >= 150;

        let log = logs.entry(request.path).or_default();
        while log.front().is_some_and(|at| *at <= now - 60 * SECOND) {
            log.pop_front();
        }
        let log_rejects = log.len() >= 400;

        let rejects = [burst_rejects, window_rejects, log_rejects];
        let is_rejected = rejects.contains(&true);
        if !is_rejected {
            arrival_times.insert(request.client, tat);
            windows.insert(request.client, (ends, count + 1));
            log.push_back(now);
        }
        found.add(request, rejects);
    }
    found
}

impl Found {
    fn add(&mut self, request: &Logged, rejects: [bool; 3]) {
        self.rejected += u64::from(rejects.contains(&true));
        let keys = [request.address(), request.address(), request.path()];
        for ((policy, key), rejects) in self.policies.iter_mut().zip(keys).zip(rejects) {
            if rejects {
                *policy.entry(key).or_default() += 1;
            }
        }
    }
}
