//! The calls of a scene: lines such as `check alice, cost 3, 2 times: 2 admitted; p 1/5 retry now reset 1us`.

use tollgate::limiter::{Check, LimitStatus};
use tollgate_tests::prelude::*;

use super::server::Backend;

/// A process: its limiter, and the requests that it has in flight.
pub(crate) struct Process {
    limiter: Limiter,
    admitted: Vec<Admission>,
}

fn number(text: &str) -> u64 {
    text.parse().expect(text)
}

impl Process {
    pub(crate) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            admitted: Vec::new(),
        }
    }

    /// Makes the calls of these lines; returns the lines with the responses of now.
    pub(crate) async fn make(&mut self, lines: &[String], backend: &Backend) -> Vec<String> {
        let mut made = Vec::new();
        for line in lines {
            let call = line.split_once(": ").map_or(&**line, |(call, _)| call);
            let response = self.run(call, backend).await;
            made.push(match response.is_empty() {
                true => call.to_owned(),
                false => format!("{call}: {response}"),
            });
        }
        made
    }

    async fn run(&mut self, call: &str, backend: &Backend) -> String {
        let mut options = call.split(", ");
        let words: Vec<&str> = options.next().unwrap_or_default().split(' ').collect();
        let options: Vec<&str> = options.collect();
        let limiter = self.limiter.clone();
        let status = match words[..] {
            ["wait", time] => {
                backend.advance(duration(time));
                return String::new();
            }
            ["check", ref keys @ ..] => return self.check(keys_of(keys), &options).await,
            ["peek", ref keys @ ..] => {
                let peek = limiter.peek(keys_of(keys));
                match options[..] {
                    [cost] => peek.cost(number(cost.trim_start_matches("cost "))).await,
                    _ => peek.await,
                }
            }
            ["charge", units, key] => limiter.charge(key_of(key), number(units)).await,
            ["reset", key] => limiter.reset(key_of(key)).await,
            // Under the first policy.
            ["credit", units, key] => {
                let policy = limiter.policies().swap_remove(0);
                let policy = limiter.policy(policy.name()).expect("a policy");
                let credited = policy.credit(key_of(key), number(units)).await;
                credited.map(|credited| credited.status().clone())
            }
            // Of the last check of one request that was admitted.
            ["refund", units] => {
                let admission = self.admitted.last().expect("an admitted check");
                let refunds = admission.refund(number(units)).await.expect(call);
                let refunds = refunds
                    .iter()
                    .map(|r| format!("{} {}", r.policy(), r.units()));
                return refunds.collect::<Vec<_>>().join("; ");
            }
            ["block", time, key] => {
                let blocked = limiter.block(key_of(key), duration(time)).await;
                blocked.expect(call);
                return String::new();
            }
            ["unblock", key] => {
                limiter.unblock(key_of(key)).await.expect(call);
                return String::new();
            }
            // Drops the last check that was admitted, and with it the permits.
            ["release", key] => {
                let left = async || {
                    let seen = limiter.peek(key_of(key)).await.expect(call);
                    seen.policies().map(|p| p.remaining()).sum::<u64>()
                };
                let before = left().await;
                drop(self.admitted.pop());
                until("the permits are released", async || left().await > before).await;
                return String::new();
            }
            _ => panic!("no call: {call}"),
        };
        shown(&status.expect(call))
    }

    async fn check(&mut self, keys: Keys, options: &[&str]) -> String {
        let caller = options.iter().find_map(|text| text.strip_prefix("caller "));
        let keys = match caller {
            Some(caller) => keys.caller(Key::new(caller)),
            None => keys,
        };
        let times = options.iter().find_map(|text| text.strip_suffix(" times"));
        let times = times.map_or(1, number);
        let decision = if times == 1 {
            let result = with_options(self.limiter.admit(keys), options).await;
            let decision = result.decision();
            self.admitted.extend(result);
            decision
        } else {
            let check = with_options(self.limiter.check(keys), options);
            check.times(times).await
        };
        assert_eq!(decision.source(), DecisionSource::Store, "{decision:?}");
        let mut response = match decision.kind() {
            DecisionKind::Admitted if times > 1 => format!("{} admitted", decision.admitted()),
            DecisionKind::Admitted => "admitted".to_owned(),
            DecisionKind::Rejected => "rejected".to_owned(),
            other => panic!("{other:?}"),
        };
        for policy in decision.policies().chain(decision.shadows()) {
            append(&mut response, policy);
        }
        response
    }
}

fn with_options<T>(check: Check<T>, options: &[&str]) -> Check<T> {
    options.iter().fold(check, |check, option| {
        let words: Vec<&str> = option.split(' ').collect();
        match words[..] {
            ["cost", units] => check.cost(number(units)),
            ["quota", "of", policy, quota] => check.quota_for(policy, stores::quota(quota)),
            ["caller", ..] | [_, "times"] => check,
            _ => panic!("no option: {option}"),
        }
    })
}

/// One key for all policies, or one for each, as in `second=bob day=team`.
fn keys_of(words: &[&str]) -> Keys {
    match words {
        [word] if !word.contains('=') => key_of(word).into(),
        each => {
            let pairs = each.iter().filter_map(|word| word.split_once('='));
            pairs.map(|(policy, key)| (policy, key_of(key))).collect()
        }
    }
}

/// The key that is shown as `text`.
fn key_of(text: &str) -> Key {
    let mut special = special_keys().into_iter();
    let key = special.find(|key| key.to_string() == text);
    key.unwrap_or_else(|| Key::new(text))
}

/// Keys that are not made of the text that is shown of them.
fn special_keys() -> Vec<Key> {
    let address = |text: &str| text.parse::<IpAddr>().expect(text);
    let [tenant, user, long] = ["tenant", "user", "a key of more than 23 characters"].map(Key::new);
    vec![
        Key::from(7_u64),
        long,
        Key::new(""),
        Key::new("{slot}"),
        Key::new("\u{e9}"),
        Key::new(b"\xff\x00"),
        Key::secret("token"),
        Key::secret_with(&[7; 32], "token"),
        Key::from(address("192.0.2.1")),
        Key::from(address("2001:db8:1:2::5")),
        Key::network(address("192.0.2.1"), 24, 48),
        Key::network(address("2001:db8:1:2::5"), 24, 48),
        Key::network(address("2001:db8:1:2::5"), 24, 128),
        Key::tuple([tenant, user]),
        Key::tuple([tenant, long]),
        Key::tuple([Key::tuple([tenant, user]), user]),
        Key::tuple([user]),
        Key::tuple::<Key>([]),
        KEY,
        Key::missing(),
    ]
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
    let shown = format!("{between}{name} {left}/{limit} retry {retry} reset {reset}us");
    response.push_str(&shown);
}

/// Such as `600ms`.
fn duration(text: &str) -> Duration {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text.strip_suffix(unit).expect(text).parse::<u64>();
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        other => panic!("{other:?} is no unit of time"),
    };
    Duration::from_micros(number.expect(text) * micros)
}
