//! The calls of a scene, and their results as text.

use std::fmt::{self, Write as _};

use tollgate::limiter::LimitStatus;
use tollgate_tests::{prelude::*, script::duration};

use super::server::Backend;

/// One call of a limiter, or a step of the clock.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    action: Action,
    keys: Vec<(&'static str, Key)>,
    cost: Option<u64>,
    times: u64,
    quota: Option<(&'static str, &'static str)>,
    caller: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Wait(Duration),
    Check,
    Peek,
    Charge(u64),
    Refund(u64),
    Credit(u64),
    Reset,
    Block(Duration),
    Unblock,
    /// Drops the last check that was admitted, and with it the permits.
    Release,
    ReadEpoch,
}

/// All policies count by the key.
const ALL: &str = "";

fn call(action: Action, key: impl Into<Key>) -> Call {
    Call {
        keys: vec![(ALL, key.into())],
        ..bare(action)
    }
}

fn bare(action: Action) -> Call {
    Call {
        action,
        keys: Vec::new(),
        cost: None,
        times: 1,
        quota: None,
        caller: None,
    }
}

/// Calls as text, between commas: `check alice cost 3 times 2 by bob`; a key of its own for each policy, as in
/// `check second=bob day=team`; `wait 5ms`, `charge alice 7` and so on are the actions above.
#[track_caller]
pub(crate) fn script(text: &'static str) -> Vec<Call> {
    text.split(", ").map(parse).collect()
}

#[track_caller]
fn parse(text: &'static str) -> Call {
    let words: Vec<&'static str> = text.split(' ').collect();
    let number = |text: &str| text.parse::<u64>().expect(text);
    let mut parsed = match words[..] {
        ["wait", time] => return wait(duration(time)),
        ["refund", units] => return refund(number(units)),
        ["read", "epoch"] => return read_epoch(),
        ["charge", key, units] => return call(Action::Charge(number(units)), key),
        ["credit", key, units] => return credit(key, number(units)),
        ["block", key, time] => return call(Action::Block(duration(time)), key),
        ["reset", key] => return reset(key),
        ["unblock", key] => return call(Action::Unblock, key),
        ["release", key] => return call(Action::Release, key),
        ["peek", key, ..] => call(Action::Peek, key),
        ["check", key, ..] if !key.contains('=') => check(key),
        ["check", ..] => {
            let keys = words.iter().filter_map(|word| word.split_once('='));
            check_each(keys.map(|(policy, key)| (policy, Key::new(key))))
        }
        _ => panic!("no call: {text}"),
    };
    for pair in words.windows(2) {
        parsed = match pair {
            ["cost", units] => parsed.cost(number(units)),
            ["times", n] => parsed.times(number(n)),
            ["by", caller] => parsed.caller(caller),
            _ => parsed,
        };
    }
    parsed
}

/// The clock advances.
pub(crate) fn wait(time: Duration) -> Call {
    bare(Action::Wait(time))
}

pub(crate) fn check(key: impl Into<Key>) -> Call {
    call(Action::Check, key)
}

/// Each policy counts by a key of its own.
pub(crate) fn check_each(keys: impl IntoIterator<Item = (&'static str, Key)>) -> Call {
    Call {
        keys: keys.into_iter().collect(),
        ..bare(Action::Check)
    }
}

/// Refunds units of the last check that was admitted.
pub(crate) fn refund(units: u64) -> Call {
    bare(Action::Refund(units))
}

/// Credits units under the first policy.
pub(crate) fn credit(key: impl Into<Key>, units: u64) -> Call {
    call(Action::Credit(units), key)
}

pub(crate) fn reset(key: impl Into<Key>) -> Call {
    call(Action::Reset, key)
}

/// Waits until the process has read the epoch, as it does after a rejection that it caches.
pub(crate) fn read_epoch() -> Call {
    bare(Action::ReadEpoch)
}

impl Call {
    pub(crate) fn cost(mut self, units: u64) -> Self {
        self.cost = Some(units);
        self
    }

    pub(crate) fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Under that policy the quota of this call is another one.
    pub(crate) fn quota(mut self, policy: &'static str, quota: &'static str) -> Self {
        self.quota = Some((policy, quota));
        self
    }

    pub(crate) fn caller(mut self, caller: &'static str) -> Self {
        self.caller = Some(caller);
        self
    }

    /// What the call is about, to peek at it.
    pub(crate) fn peeks(&self) -> Option<Self> {
        let keys = self.keys.clone();
        (!keys.is_empty()).then(|| Self {
            keys,
            ..bare(Action::Peek)
        })
    }

    pub(crate) fn is_about(&self, other: &Self) -> bool {
        self.keys == other.keys
    }

    fn keys(&self) -> Keys {
        let keys = match &self.keys[..] {
            [(ALL, key)] => Keys::from(*key),
            each => each.iter().copied().collect(),
        };
        match self.caller {
            Some(caller) => keys.caller(Key::new(caller)),
            None => keys,
        }
    }

    /// The key of all policies.
    fn key(&self) -> Key {
        self.keys[0].1
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Wait(time) => write!(f, "wait {}us", time.as_micros())?,
            Action::Check => write!(f, "check")?,
            Action::Peek => write!(f, "peek")?,
            Action::Charge(units) => write!(f, "charge {units}")?,
            Action::Refund(units) => write!(f, "refund {units}")?,
            Action::Credit(units) => write!(f, "credit {units}")?,
            Action::Reset => write!(f, "reset")?,
            Action::Block(time) => write!(f, "block {}us", time.as_micros())?,
            Action::Unblock => write!(f, "unblock")?,
            Action::Release => write!(f, "release")?,
            Action::ReadEpoch => write!(f, "read the epoch")?,
        }
        for (policy, key) in &self.keys {
            match *policy {
                ALL => write!(f, " {key}")?,
                policy => write!(f, " {policy}={key}")?,
            }
        }
        if let Some(cost) = self.cost {
            write!(f, ", cost {cost}")?;
        }
        if self.times > 1 {
            write!(f, ", {} times", self.times)?;
        }
        if let Some((policy, quota)) = self.quota {
            write!(f, ", quota of {policy} {quota}")?;
        }
        if let Some(caller) = self.caller {
            write!(f, ", caller {caller}")?;
        }
        Ok(())
    }
}

/// A process: its limiter, and the requests that it has in flight.
pub(crate) struct Process {
    pub(crate) limiter: Limiter,
    admitted: Vec<Decision>,
}

impl Process {
    pub(crate) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            admitted: Vec::new(),
        }
    }

    /// Makes a call; returns the line of the fixture.
    pub(crate) async fn make(&mut self, call: &Call, backend: &Backend) -> String {
        let response = self.run(call, backend).await;
        match response.is_empty() {
            true => call.to_string(),
            false => format!("{call}: {response}"),
        }
    }

    async fn run(&mut self, call: &Call, backend: &Backend) -> String {
        let limiter = &self.limiter;
        let status = match call.action {
            Action::Wait(time) => {
                backend.advance(time);
                return String::new();
            }
            Action::Check => return self.check(call).await,
            Action::Refund(units) => {
                let decision = self.admitted.last_mut().expect("an admitted check");
                let refunds = decision.refund(units).await.expect("a response");
                let refunds = refunds
                    .iter()
                    .map(|r| format!("{} {}", r.policy(), r.units()));
                return refunds.collect::<Vec<_>>().join("; ");
            }
            Action::Block(time) => {
                limiter.block(call.keys(), time).await.expect("a response");
                return String::new();
            }
            Action::Unblock => {
                limiter.unblock(call.keys()).await.expect("a response");
                return String::new();
            }
            Action::Release => {
                let left = async || {
                    let seen = limiter.peek(call.keys()).await.expect("a response");
                    seen.policies().map(|p| p.remaining()).sum::<u64>()
                };
                let before = left().await;
                drop(self.admitted.pop());
                until("the permits are released", async || left().await > before).await;
                return String::new();
            }
            Action::ReadEpoch => {
                let server = backend.server();
                until("the epoch is read", async || {
                    // Its script begins with a PTTL, and leaves the key.
                    let exists = server.command(&["EXISTS", "tg:gen"]).int() == 1;
                    exists && server.calls("pttl") > 0
                })
                .await;
                return String::new();
            }
            Action::Credit(units) => {
                let policies = limiter.policies();
                let policy = policies.first().expect("a policy").name();
                let policy = limiter.policy(policy).expect("a policy");
                let credited = policy.credit(call.key(), units).await;
                credited.map(|credited| credited.status().clone())
            }
            Action::Charge(units) => limiter.charge(call.keys(), units).await,
            Action::Reset => limiter.reset(call.keys()).await,
            Action::Peek => {
                let peek = limiter.peek(call.keys());
                match call.cost {
                    Some(cost) => peek.cost(cost).await,
                    None => peek.await,
                }
            }
        };
        shown(&status.expect("a response"))
    }

    async fn check(&mut self, call: &Call) -> String {
        let mut check = self.limiter.check(call.keys()).times(call.times);
        if let Some(cost) = call.cost {
            check = check.cost(cost);
        }
        if let Some((policy, quota)) = call.quota {
            check = check.quota_for(policy, quota.parse().expect(quota));
        }
        let decision = check.await;
        assert_eq!(decision.source(), DecisionSource::Store, "{decision:?}");
        let mut response = match decision.kind() {
            DecisionKind::Admitted if call.times > 1 => format!("{} admitted", decision.admitted()),
            DecisionKind::Admitted => "admitted".to_owned(),
            DecisionKind::Rejected => "rejected".to_owned(),
            other => panic!("{other:?}"),
        };
        for policy in decision.policies().chain(decision.shadows()) {
            append(&mut response, policy);
        }
        if decision.is_admitted() {
            self.admitted.push(decision);
        }
        response
    }
}

fn shown(status: &LimitStatus) -> String {
    assert_eq!(status.source(), DecisionSource::Store, "{status:?}");
    let mut response = String::new();
    for policy in status.policies().chain(status.shadows()) {
        append(&mut response, policy);
    }
    response
}

fn append(response: &mut String, policy: PolicyDecision<'_>) {
    let between = if response.is_empty() { "" } else { "; " };
    let retry = match policy.retry_after() {
        RetryAfter::Now => "now".to_owned(),
        RetryAfter::In(wait) => format!("{}us", wait.as_micros()),
        RetryAfter::Never => "never".to_owned(),
        other => panic!("{other:?}"),
    };
    let (name, left, limit) = (policy.policy(), policy.remaining(), policy.limit());
    let reset = policy.reset_after().as_micros();
    write!(
        response,
        "{between}{name} {left}/{limit} retry {retry} reset {reset}us"
    )
    .expect("a string grows");
}
