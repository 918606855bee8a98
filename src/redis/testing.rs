//! A store whose script replies any bytes, for tests and fuzzing: valid replies and others.

use std::{
    pin::pin,
    sync::{Arc, LazyLock, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{HeaderMap, Request, Response};
use redis::Value;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    RedisStore,
    batch::{Batch, wire},
    health,
    io::{ServerClock, slots},
    request::{PendingRequest, RequestState, op::OwnedCounterOp},
};
use crate::{
    Ban, CalendarWindow, Concurrency, FixedWindow, Gcra, Key, Limiter, ListWindow, Policy, Quota,
    RateLimitLayer, SlidingLog, SlidingWindow, StoreError, TokenBucket,
    error::InvalidValue,
    extract,
    store::{
        Completion, CounterOp, HealthReport, KeepAlive, LimitHandle, Op, Store, StoreResponse,
    },
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
        let (mut request, response) =
            PendingRequest::with_response(RequestState::new(op, counters, deadline, 0));
        request.time_synced = true;
        let _ = batch.push(request);
        let bytes = lock(&self.reply);
        let reply = wire::decode_and_complete(
            &mut batch,
            Value::BulkString(bytes.clone()),
            &ServerClock::default(),
        );
        drop(bytes);
        drop(batch);
        if let Ok(reply) = &reply {
            assert!(reply.retry.is_empty(), "sent for the third time");
        }
        // A result that is not read is refunded, which goes nowhere without a runtime.
        StoreResponse::Ready(match (response.now_or_never(), reply) {
            (Some(Err(_)), Err(error)) => Err(error),
            (Some(result), _) => result,
            (None, _) => Err(StoreError::Unsupported("a response without a waiter")),
        })
    }

    fn keep_alive(&self, counters: &[CounterOp<'_>]) -> Option<KeepAlive> {
        self.store.keep_alive(counters)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
        if let (StoreResponse::Ready(result), Some(completion)) =
            (self.execute(op, counters), completion)
        {
            completion.complete(result);
        }
    }
}

/// A handler that is done at once.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<String>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(String::new())))
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
        policy("burst", Quota::requests(500_000).per_second().burst(9)).strategy(Gcra),
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
    if let Ok(admission) = now(limiter.admit(key).cost(units)) {
        let _ = now(admission.refund(units));
    }
    match now(limiter.admit(key)) {
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
        let ranges = slots::read_slots(value, "asked");
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
    use super::*;
    use crate::redis::script::msgpack::MsgPackWriter;

    /// A call's reply of these numbers and texts.
    fn packed(numbers: &[i64], text: Option<&str>) -> Vec<u8> {
        let mut packed = MsgPackWriter::default();
        packed.list(1 + numbers.len() + text.iter().len());
        // The number of a call that was never encoded.
        packed.int(0);
        numbers.iter().for_each(|number| packed.int(*number));
        text.iter().for_each(|text| packed.text(text));
        packed.as_bytes().to_vec()
    }

    /// More of them are found by fuzzing.
    #[test]
    fn no_reply_of_the_script_or_of_another_command_breaks_a_request() {
        let now = 1_790_000_000_000_000;
        for numbers in [
            vec![now, 1],
            vec![now, 0, 100, now + 1_000_000, 3],
            vec![now, 3, i64::MAX, i64::MIN, 1 << 53, -1],
            vec![i64::MIN, i64::MAX],
            [vec![now, 1], vec![now; 40]].concat(),
        ] {
            let bytes = packed(&numbers, None);
            for end in 0..=bytes.len() {
                script_reply(&bytes[..end]);
            }
        }
        // The request whose window is stale is sent again, once.
        for text in [
            "STALE late",
            "FOREIGN tg:key",
            "WRONGTYPE a list",
            "OOM",
            "",
        ] {
            script_reply(&packed(&[1, -1, 0], Some(text)));
        }
        for text in [
            "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:-1\r\n",
            "*2\r\n:1\r\n$-1\r\n",
            "*9",
            "redis_version:7.999999999999999999999.0\r\nrole:slave\r\n",
            "\u{e9}",
        ] {
            other_reply(text.as_bytes());
        }
    }
}
