//! What the tests share: policies on stores whose clock only moves when it is set, and counts by a peek.

use tollgate::outcome::RequestEnd;

pub(crate) use tollgate_tests::prelude::*;

/// A limit of `n` requests in flight, all together. No test outlasts the TTL: a permit that is free was released.
pub(crate) fn permit_policy(n: u64) -> Policy {
    let policy = Policy::new("permits", Quota::concurrent(n)).key(extract::global());
    policy.strategy(Concurrency::with_ttl(secs(3_600)))
}

/// `n` requests an hour, all together.
pub(crate) fn hourly(name: &str, n: u64) -> Policy {
    let policy = Policy::new(name, Quota::requests(n).per_hour());
    policy.strategy(FixedWindow).key(extract::global())
}

/// How many units of these policies are used.
async fn used_of<const N: usize>(limiter: &Limiter, policies: [&str; N]) -> [u64; N] {
    let seen = limiter.peek(Key::global()).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    policies.map(|name| seen.used(name))
}

/// How many units of `policy` are used.
pub(crate) async fn used(limiter: &Limiter, policy: &str) -> u64 {
    let [used] = used_of(limiter, [policy]).await;
    used
}

/// Waits until this many permits are taken.
#[track_caller]
pub(crate) fn until_taken(limiter: &Limiter, permits: u64) -> impl Future<Output = ()> {
    until("so many permits are taken", async move || {
        used(limiter, "permits").await == permits
    })
}

/// What is charged under each policy of [`ChargedLayer`]: reserved for successes and for failures, and charged on response for
/// successes and for failures.
pub(crate) type Charged = [u64; 4];

pub(crate) const IN_FLIGHT: Charged = [1, 1, 0, 0];
pub(crate) const SUCCESS: Charged = [1, 0, 1, 0];
pub(crate) const FAILURE: Charged = [0, 1, 0, 1];
/// Its outcome is not known: charged whatever the outcome would have been.
pub(crate) const DROPPED: Charged = [1, 1, 1, 1];
pub(crate) const NOTHING: Charged = [0, 0, 0, 0];

const CHARGES: [&str; 4] = [
    "reserve success",
    "reserve failure",
    "response success",
    "response failure",
];

/// How a request ended, with its HTTP status and its gRPC code.
pub(crate) type Ended = (RequestEnd, Option<u16>, Option<i32>);

/// A layer with a policy of every mode and outcome, and an in-flight limit, which shows when a request is over.
pub(crate) struct ChargedLayer {
    pub(crate) layer: RateLimitLayer,
    ended: Arc<Mutex<Vec<Ended>>>,
}

impl ChargedLayer {
    pub(crate) fn new(world: &World) -> Self {
        Self::when_dropped(world, true)
    }

    pub(crate) fn when_dropped(world: &World, charges: bool) -> Self {
        let [
            reserve_success,
            reserve_failure,
            response_success,
            response_failure,
        ] = CHARGES;
        let ended = Arc::<Mutex<Vec<Ended>>>::default();
        let record = ended.clone();
        let sees = hourly("sees", 9).charge_after(move |outcome| {
            let status = outcome.status().map(|status| status.as_u16());
            let seen = (outcome.end(), status, outcome.grpc_status());
            record.lock().expect("no panic").push(seen);
            false
        });
        let policies = [
            hourly(reserve_success, 9).refund_unless(outcome::success),
            hourly(reserve_failure, 9).refund_unless(outcome::failure),
            hourly(response_success, 9).charge_after(outcome::success),
            hourly(response_failure, 9).charge_after(outcome::failure),
            sees,
        ];
        let policies = policies.map(|policy| policy.charge_dropped(charges));
        let limiter = world.limiter(policies.into_iter().chain([permit_policy(9)]));
        Self {
            layer: RateLimitLayer::new(limiter),
            ended,
        }
    }

    async fn charged(&self) -> Charged {
        used_of(self.layer.limiter(), CHARGES).await
    }

    /// What is charged for the one request in flight.
    pub(crate) async fn in_flight(&self) -> Charged {
        until_taken(self.layer.limiter(), 1).await;
        self.charged().await
    }

    /// Waits until no request is in flight; returns what it was charged and how it ended, if that is known, and resets
    /// both.
    pub(crate) async fn settled(&self) -> (Charged, Option<Ended>) {
        until_taken(self.layer.limiter(), 0).await;
        let sent = self.layer.limiter().shutdown(TEST_TIMEOUT).await;
        sent.expect("all charges and refunds are made");
        let charged = self.charged().await;
        let reset = self.layer.limiter().reset(Key::global()).await;
        let _ = reset.expect("a response");
        let mut ended = std::mem::take(&mut *self.ended.lock().expect("no panic"));
        assert!(ended.len() <= 1, "settled twice: {ended:?}");
        (charged, ended.pop())
    }
}
