//! Policies and settings that are replaced while requests are served: what random histories with changes in them (`differential`) do
//! not show.

use tollgate::changes::Changes;
use tollgate_tests::prelude::*;

mod in_flight;
mod load;
mod replaced;
mod waiting;

/// Longer than any window, and than any request waits here.
const LONG: Duration = secs(86_400);

/// A policy that counts all clients together.
fn policy(name: &str, quota: &str) -> Policy {
    Policy::new(name, stores::quota(quota)).key(extract::global())
}

/// The same, in windows of a fixed length.
fn window(name: &str, quota: &str) -> Policy {
    policy(name, quota).strategy(FixedWindow)
}

/// A limit `p` of all requests in flight.
fn permits(n: u64) -> Policy {
    Policy::new("p", Quota::concurrent(n)).key(extract::global())
}

/// New settings of a limiter that reports store failures.
fn settings(policies: impl IntoIterator<Item = Policy>) -> LimiterBuilder {
    let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
    policies.into_iter().fold(builder, LimiterBuilder::policy)
}

/// New settings of a layer.
fn layer_settings(policies: impl IntoIterator<Item = Policy>) -> LimiterBuilder<RateLimitLayer> {
    let builder = RateLimitLayer::builder().on_store_error(OnStoreError::Reject);
    policies.into_iter().fold(builder, LimiterBuilder::policy)
}

/// A limiter by the runtime's time, which leaps when there is nothing to do.
fn timed(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    settings(policies).store(store).built()
}

/// Replaces the policies.
#[track_caller]
fn replace(limiter: &Limiter, policies: impl IntoIterator<Item = Policy>) -> Changes {
    let changes = limiter.reconfigure(settings(policies));
    changes.expect("valid settings")
}

/// How many units of the policy are used by all clients together.
async fn used(limiter: &Limiter, policy: &str) -> u64 {
    let status = limiter.peek([(policy, KEY)]).cost(1).await;
    status.expect("a response").used(policy)
}

/// A service behind the layer.
fn app(layer: &RateLimitLayer) -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .layer(layer.clone())
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    /// The value of a header field; nothing if there is none.
    fn field(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str());
        value.transpose().expect("text").unwrap_or("")
    }
}

async fn get_from(app: &Router) -> Answer {
    let request = Request::new(Body::empty());
    let response = app.clone().oneshot(request).await.expect("no error");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    }
}
