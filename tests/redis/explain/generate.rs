//! Random sets of policies, and requests to them.

use tollgate::{
    access::OnUnknownAddress,
    extract::{self, PeerAddr},
};
use tollgate_tests::prelude::*;

const PATHS: [&str; 4] = ["/", "/login", "/static/a", "/health"];

fn quota(text: &str) -> Quota {
    text.parse().expect(text)
}

/// The number in a header.
fn number(parts: &Parts, name: &str) -> Option<u64> {
    parts.headers.get(name)?.to_str().ok()?.parse().ok()
}

/// The quota of the request's tier.
fn tier(parts: &Parts) -> Option<Quota> {
    let text = parts.headers.get("x-tier")?.to_str().ok()?;
    Some(quota(text))
}

fn chance(rng: &mut Rng, percent: u64) -> bool {
    rng.below(100) < percent
}

/// An enforced policy or a shadow policy, of any strategy.
fn counting(rng: &mut Rng, name: &str) -> Policy {
    let policy = match rng.below(9) {
        // None is renewed while the test runs.
        8 => Policy::new(name, Quota::concurrent(1 + rng.below(2)))
            .strategy(Concurrency::with_ttl(secs(3_600))),
        strategy => {
            let text = rng.one_of(&["2/min", "3/min", "5/min", "4/10s", "3/h"]);
            StrategyKind::ALL[strategy as usize].policy(name, text)
        }
    };
    let policy = keyed(rng, policy);
    let policy = match rng.below(4) {
        0 => policy.cost_with(|parts| number(parts, "x-cost").unwrap_or(1)),
        1 => policy.cost(rng.below(3)),
        _ => policy,
    };
    let is_permit = is_permit(&policy);
    let policy = match rng.below(6) {
        0 if !is_permit => policy.quota_with(tier),
        _ => policy,
    };
    conditioned(rng, policy)
}

/// Whether it limits requests in flight.
fn is_permit(policy: &Policy) -> bool {
    (1..3).any(|most| policy.quota() == Quota::concurrent(most))
}

fn keyed(rng: &mut Rng, policy: Policy) -> Policy {
    let policy = match rng.below(5) {
        0 => policy.key(extract::header("x-user")),
        1 => policy.key(extract::header("x-user").readable()),
        2 => policy.key(extract::global()),
        3 => policy.key((extract::header("x-user"), extract::path())),
        _ => policy,
    };
    match rng.below(4) {
        0 => policy.missing_key(MissingKey::Shared),
        1 => policy.missing_key(MissingKey::Reject),
        _ => policy.missing_key(MissingKey::Skip),
    }
}

fn conditioned(rng: &mut Rng, policy: Policy) -> Policy {
    match rng.below(12) {
        0 => policy.skip_path(rng.one_of(&["/health", "/static/*"])),
        1 => policy.only_path("/login"),
        2 => policy.only_method(Method::POST),
        3 => policy.skip_method(Method::GET),
        4 => policy.skip_with(|parts| parts.headers.contains_key("x-internal")),
        5 => policy.only_with(|parts| !parts.headers.contains_key("x-internal")),
        _ => policy,
    }
}

fn ban(rng: &mut Rng) -> Policy {
    let policy = match rng.below(4) {
        0 => Policy::block_list("ban"),
        _ => Policy::new("ban", quota(rng.one_of(&["2/min", "4/min"])))
            .strategy(Ban::for_duration(secs(30))),
    };
    let policy = policy.key(extract::header("x-user"));
    conditioned(rng, policy).missing_key(MissingKey::Skip)
}

/// The settings of a limiter, the same ones for each call with the same numbers.
pub(crate) fn settings(seed: u64, builder: LimiterBuilder) -> LimiterBuilder {
    let rng = &mut Rng::new(seed);
    let mut builder = builder;
    let live = 1 + rng.below(3);
    for name in ["a", "b", "c"].into_iter().take(live as usize) {
        let mut policy = counting(rng, name);
        // A rejected request is not in flight.
        if chance(rng, 20) && !is_permit(&policy) {
            policy = policy.charge_rejected(true);
        }
        builder = builder.policy(policy);
    }
    if chance(rng, 40) {
        builder = builder.policy(ban(rng));
    }
    if chance(rng, 30) {
        builder = builder.policy(counting(rng, "shadow").shadow());
    }
    if chance(rng, 10) {
        builder = builder.policy(Policy::new("jobs", quota("1/min")).by_hand());
    }
    if chance(rng, 20) {
        builder = builder.deny(AddressList::new(["192.0.2.3"]).expect("a list"));
        if chance(rng, 50) {
            builder = builder.on_unknown_address(OnUnknownAddress::Reject);
        }
    }
    if chance(rng, 20) {
        builder = builder.allow(KeyList::new("a", [Key::secret("u3"), Key::new("u3")]));
    }
    match rng.below(8) {
        0 => builder.skip_path("/health"),
        1 => builder.only_with(|parts| parts.method != Method::DELETE),
        _ => builder,
    }
}

/// The head of a request.
pub(crate) fn request(rng: &mut Rng) -> Parts {
    let method = rng.one_of(&["GET", "GET", "POST", "DELETE", "OPTIONS"]);
    let mut request = Request::builder().method(method).uri(rng.one_of(&PATHS));
    if method == "OPTIONS" {
        request = request.header("origin", "https://a.test");
        request = request.header("access-control-request-method", "GET");
    }
    if chance(rng, 92) {
        request = request.header("x-user", format!("u{}", rng.below(4)));
    }
    if chance(rng, 30) {
        request = request.header("x-tier", rng.one_of(&["1/min", "9/min", "2/h", "30/min"]));
    }
    if chance(rng, 50) {
        request = request.header("x-cost", rng.below(5).to_string());
    }
    if chance(rng, 10) {
        request = request.header("x-internal", "1");
    }
    let (mut parts, ()) = request.body(()).expect("a request").into_parts();
    if chance(rng, 95) {
        let address = SocketAddr::from(([192, 0, 2, 1 + rng.below(3) as u8], 1));
        parts.extensions.insert(PeerAddr(address));
    }
    parts
}
