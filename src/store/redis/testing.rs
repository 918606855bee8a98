//! A store whose script replies any bytes, for tests and fuzzing: valid replies and others.

use std::{
    pin::pin,
    sync::{Arc, LazyLock, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderMap, Request, Response};
use redis::Value;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    RedisStore,
    batch::{Batch, wire},
    cluster::node,
    health,
    request::{PendingRequest, RequestState, op::OwnedCounterOp},
};
use crate::{
    Ban, CalendarWindow, Concurrency, FixedWindow, Gcra, Key, Limiter, ListWindow, Policy, Quota,
    RateLimitLayer, SlidingLog, SlidingWindow, StoreError, TokenBucket,
    error::InvalidValue,
    extract,
    store::{CallersFuture, CounterOp, HealthReport, LimitHandle, Op, Store, StoreResponse},
    strategy::Rule,
    sync::lock,
};

/// Counts nothing: each call gets the reply that was set last.
#[derive(Clone, Debug)]
struct ScriptedStore {
    store: RedisStore,
    reply: Arc<Mutex<Vec<u8>>>,
}

impl Store for ScriptedStore {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.store.register(policy, rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let mut batch = Batch::default();
        let counters = counters.iter().map(OwnedCounterOp::of).collect();
        let deadline = Instant::now() + Duration::from_secs(1);
        let (mut request, mut response) =
            PendingRequest::with_response(RequestState::new(op, counters, deadline, 0), None);
        request.time_synced = true;
        let _ = batch.push(request);
        let bytes = lock(&self.reply);
        let reply = wire::decode_and_complete(&mut batch, Value::BulkString(bytes.clone()));
        drop(bytes);
        drop(batch);
        if let Ok(reply) = &reply {
            assert!(reply.retry.is_empty(), "sent for the third time");
        }
        // A result that is not read is refunded, which goes nowhere without a runtime.
        let result = response.poll_response(&Context::from_waker(Waker::noop()));
        StoreResponse::Ready(match (result, reply) {
            (Poll::Ready(Err(_)), Err(error)) => Err(error),
            (Poll::Ready(result), _) => result,
            (Poll::Pending, _) => Err(StoreError::Unsupported("a response without a waiter")),
        })
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        self.store.callers(limit, key)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        drop(self.execute(op, counters));
    }
}

/// A handler that is done at once.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<()>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<()>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(())))
    }
}

type Desk = (Arc<Mutex<Vec<u8>>>, Vec<RateLimitLayer>);

/// Layers by each strategy, and one under all of them.
static LAYERS: LazyLock<Option<Desk>> = LazyLock::new(|| {
    let store = ScriptedStore {
        store: RedisStore::open("redis://127.0.0.1:1").ok()?,
        reply: Arc::default(),
    };
    let all = policies();
    let mut layers = Vec::new();
    for policies in all.iter().map(std::slice::from_ref).chain([&all[..]]) {
        let layer = RateLimitLayer::builder().store(store.clone());
        let layer = policies.iter().cloned().fold(layer, |l, p| l.policy(p));
        layers.push(layer.build().ok()?);
    }
    Some((store.reply, layers))
});

fn policies() -> Vec<Policy> {
    let day = || Quota::requests(100).per_day();
    let policy = |name, quota| Policy::new(name, quota).key(extract::global());
    vec![
        policy("gcra", day()).strategy(Gcra),
        policy("burst", Quota::requests(700_000).per_second().burst(9)).strategy(Gcra),
        policy("bucket", day()).strategy(TokenBucket),
        policy("fixed", day()).strategy(FixedWindow),
        policy("month", Quota::requests(100).per_month()).strategy(CalendarWindow::utc()),
        policy("list", day()).strategy(ListWindow),
        policy("log", day()).strategy(SlidingLog),
        policy("sliding", day()).strategy(SlidingWindow::new()),
        policy("places", Quota::concurrent(5)).strategy(Concurrency::default()),
        policy("ban", Quota::requests(5).per_hour())
            .strategy(Ban::for_duration(Duration::from_secs(600))),
        policy("counts", day()).charge_rejected(true),
        policy("later", day()).charge_after(|_| true),
        policy("shadow", day()).shadow(),
    ]
}

/// Decides, settles and completes a request under each strategy, where the script's reply to every call is `bytes`. Whatever they
/// are, the HTTP response is well-formed.
pub fn script_reply(bytes: &[u8]) {
    let Some((reply, layers)) = &*LAYERS else {
        unreachable!("the layers can be built");
    };
    // One at a time has its reply there.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = lock(&TURN);
    *lock(reply) = bytes.to_vec();
    for layer in layers {
        let mut service = layer.layer(Hello);
        let Ok(response) = now(service.call(Request::new(())));
        check_fields(response.headers());
        let limiter = layer.limiter();
        decide(limiter, bytes.len() as u64);
        if let Some(units) = bytes.last_chunk() {
            decide(limiter, u64::from_le_bytes(*units));
        }
    }
}

fn decide(limiter: &Limiter, units: u64) {
    let key = Key::global();
    let _ = format!("{:?}", now(limiter.peek(key)));
    let _ = format!("{:?}", now(limiter.charge(key, units)));
    let _ = now(limiter.reset(key));
    let _ = now(limiter.check(key).times(units));
    let mut decision = now(limiter.check(key).cost(units).times(1 + units % 9));
    let _ = now(decision.refund(units));
    match now(limiter.check(key)).into_result() {
        Ok(admission) => {
            for policy in limiter.policies() {
                if let Ok(policy) = admission.policy(policy.name()) {
                    let _ = now(policy.charge(units));
                    let _ = now(policy.refund(1));
                }
            }
            let policies = limiter.policies();
            let names = policies.iter().map(crate::Policy::name);
            let _ = now(admission.settle_each(names.map(|name| (name, units))));
        }
        Err(rejected) => {
            let _ = (rejected.to_string(), rejected.retry_after());
        }
    }
}

/// A wait is at least a second.
fn check_fields(headers: &HeaderMap) {
    let wait = headers.get(http::header::RETRY_AFTER);
    let wait = wait.map(|wait| wait.to_str().map(str::parse::<u64>));
    assert!(
        matches!(wait, None | Some(Ok(Ok(1..)))),
        "Retry-After: {wait:?}"
    );
}

/// Decodes `bytes` as a server's reply to every other command.
pub fn other_reply(bytes: &[u8]) {
    if let Ok(value) = redis::parse_redis_value(bytes) {
        let ranges = node::read_slots(value, "asked");
        for (_, _, host, _) in ranges {
            assert!(!host.is_empty() && host != "?", "{host:?}");
        }
    }
    let info = String::from_utf8_lossy(bytes);
    let mut health = HealthReport::default();
    health::InfoReply(&info).check(&"server".into(), &mut health);
    let _ = health.issues().iter().map(ToString::to_string).count();
    if let Some(key) = Key::parse_stored(bytes) {
        assert_eq!(key.as_str().as_bytes(), bytes);
    }
}

fn now<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("all responses are ready"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::redis::script::msgpack::MsgPackWriter;

    const EDGES: &[i64] = &[
        i64::MIN,
        i64::MIN + 1,
        i64::MAX,
        1 << 53,
        1 << 54,
        -(1 << 54),
        1 << 32,
    ];

    /// A number that a script may reply, or never would.
    fn number() -> impl Strategy<Value = i64> {
        let about_now = 1_790_000_000_000_000_i64;
        prop_oneof![
            4 => -3_i64..120,
            3 => (-100_000_000_000_i64..100_000_000_000).prop_map(move |us| about_now + us),
            1 => any::<i64>(),
            1 => prop::sample::select(EDGES),
        ]
    }

    fn packed(numbers: &[i64], text: Option<(usize, String)>) -> Vec<u8> {
        let mut packed = MsgPackWriter::default();
        packed.list(1 + numbers.len());
        // The number of a call that was never encoded.
        packed.int(0);
        for (place, number) in numbers.iter().enumerate() {
            match &text {
                Some((at, text)) if *at == place => packed.text(text),
                _ => packed.int(*number),
            }
        }
        packed.as_bytes().to_vec()
    }

    /// The request was sent with the server's time before.
    #[test]
    fn a_request_with_a_stale_window_is_sent_again_once() {
        script_reply(&packed(&[1, -1, 0], Some((2, "STALE late".into()))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_reply_of_the_script_breaks_a_request(
            at in number(),
            admitted in number(),
            words in prop::collection::vec(number(), 0..40),
            kept in 1_usize..300,
        ) {
            let numbers: Vec<_> = [at, admitted].into_iter().chain(words).collect();
            let mut bytes = packed(&numbers, None);
            bytes.truncate(kept);
            script_reply(&bytes);
        }

        #[test]
        fn no_error_of_the_script_breaks_a_request(
            at in number(),
            text in "((FOREIGN|WRONGTYPE|STALE|OOM|[A-Z]{0,9}) ?)?\\PC{0,40}",
            kept in 1_usize..60,
        ) {
            let mut bytes = packed(&[at, -1, 0], Some((2, text)));
            bytes.truncate(kept);
            script_reply(&bytes);
        }

        #[test]
        fn no_bytes_break_a_request(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            script_reply(&bytes);
            other_reply(&bytes);
        }

        #[test]
        fn no_map_of_a_cluster_and_no_information_breaks_anything(
            text in "(\\*[0-9]|:-?[0-9]{1,20}|\\$-?[0-9]|\\PC{0,5}|redis_version:[0-9.]{0,30}|role:slave|\r\n){0,30}",
        ) {
            other_reply(text.as_bytes());
        }
    }
}
