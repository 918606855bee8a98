//! How long a request that passes a layer holds its permit.

use axum::extract::State;
use futures_util::{StreamExt, stream};
use tollgate::limiter::PermitGuard;
use tollgate_tests::prelude::*;

use crate::inflight::support::*;

fn layer(world: &World) -> (RateLimitLayer, Limiter) {
    let limiter = world.limiter([permit_policy(LONG_TTL)]);
    (RateLimitLayer::new(limiter.clone()), limiter)
}

fn request(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).expect("a request")
}

/// What handlers leave behind.
#[derive(Clone, Default)]
struct Kept {
    holds: Arc<Mutex<Vec<PermitGuard>>>,
    admissions: Arc<Mutex<Vec<Admission>>>,
}

async fn hold(State(kept): State<Kept>, admission: Admission) -> &'static str {
    let guard = admission.hold_permits();
    kept.holds.lock().expect("no panic").push(guard);
    "held"
}

async fn keep(State(kept): State<Kept>, admission: Admission) -> &'static str {
    kept.admissions.lock().expect("no panic").push(admission);
    "kept"
}

#[tokio::test]
async fn a_permit_guard_keeps_the_permit_past_the_response_and_the_extension_alone_does_not() {
    for world in World::both() {
        let (layer, limiter) = layer(&world);
        let kept = Kept::default();
        let routes = Router::new()
            .route("/hold", get(hold))
            .route("/keep", get(keep));
        let app = routes.with_state(kept.clone()).layer(layer);
        for (path, left) in [
            ("/keep", MAX_PERMITS),
            ("/hold", MAX_PERMITS - 1),
            ("/hold", MAX_PERMITS - 2),
        ] {
            let response = app.clone().oneshot(request(path)).await;
            let response = response.expect("infallible");
            assert_eq!(response.status(), 200);
            drop(response.into_body().collect().await.expect("a body"));
            until_free(&limiter, left).await;
        }
        // The handler kept the handle only, and the permit is gone: there is nothing left to be held.
        let late = kept.admissions.lock().expect("no panic")[0].hold_permits();
        assert_eq!(free(&limiter).await, MAX_PERMITS - 2);
        kept.holds.lock().expect("no panic").clear();
        until_free(&limiter, MAX_PERMITS).await;
        drop(late);
        assert_eq!(free(&limiter).await, MAX_PERMITS);
    }
}

#[tokio::test]
async fn a_response_holds_the_permit_until_its_body_has_been_read_or_dropped() {
    for world in World::both() {
        let (layer, limiter) = layer(&world);
        let app = Router::new().route("/", get(async || "hello")).layer(layer);
        for read in [true, false] {
            let response = app.clone().oneshot(request("/")).await.expect("infallible");
            assert_eq!(free(&limiter).await, MAX_PERMITS - 1);
            let mut body = response.into_body();
            if read {
                while body.frame().await.is_some() {}
                until_free(&limiter, MAX_PERMITS).await;
                drop(body);
            } else {
                drop(body);
            }
            until_free(&limiter, MAX_PERMITS).await;
        }
    }
}

#[tokio::test]
async fn an_error_of_the_inner_service_releases_the_permit() {
    for world in World::both() {
        let (layer, limiter) = layer(&world);
        let failing = service_fn(async |_: Request<Body>| Err::<Response<Body>, _>("broken"));
        let service = layer.layer(failing);
        for _ in 0..3 * MAX_PERMITS {
            let error = service.clone().oneshot(request("/")).await;
            assert_eq!(error.expect_err("an error"), "broken");
            until_free(&limiter, MAX_PERMITS).await;
        }
    }
}

/// An inner layer rejects: the permits of the outer one are released with the response.
#[tokio::test]
async fn a_rejection_by_an_inner_layer_releases_the_outer_permit() {
    for world in World::both() {
        let (outer, limiter) = layer(&world);
        let inner = World::memory().limiter([permit_policy_of(1, LONG_TTL)]);
        let taken = admit(&inner).await;
        let app = Router::new().route("/", get(async || "hello"));
        let app = app.layer(RateLimitLayer::new(inner.clone())).layer(outer);
        let send = async || app.clone().oneshot(request("/")).await.expect("infallible");
        let rejected = send().await;
        assert_eq!(rejected.status(), 429);
        drop(rejected);
        until_free(&limiter, MAX_PERMITS).await;
        drop(taken);
        let response = send().await;
        assert_eq!(response.status(), 200);
        assert_eq!(
            (free(&limiter).await, free(&inner).await),
            (MAX_PERMITS - 1, 0)
        );
        drop(response);
        until_free(&limiter, MAX_PERMITS).await;
        assert_eq!(free(&inner).await, 1);
    }
}

/// Notes, when it is dropped, how many permits were free then.
struct FreePermitsOnDrop {
    limiter: Limiter,
    seen: Arc<Mutex<Vec<u64>>>,
}

impl Drop for FreePermitsOnDrop {
    fn drop(&mut self) {
        // In process the decision is there at once.
        let peek = self.limiter.peek(KEY).into_future().now_or_never();
        let free = peek.expect("an answer at once").expect("a response");
        let free = free.left("permits");
        self.seen.lock().expect("no panic").push(free);
    }
}

/// What a request works with is let go before its permit is: else there is one more at work than there are permits.
#[tokio::test]
async fn a_cancelled_request_and_a_dropped_body_drop_their_work_before_their_permit() {
    let (layer, limiter) = layer(&World::memory());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let witness = || FreePermitsOnDrop {
        limiter: limiter.clone(),
        seen: seen.clone(),
    };
    let endless = layer.layer(service_fn(|_: Request<Body>| {
        let witness = witness();
        async move {
            std::future::pending::<()>().await;
            drop(witness);
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    }));
    let mut work = Box::pin(endless.oneshot(request("/")));
    assert!((&mut work).now_or_never().is_none());
    assert_eq!(free(&limiter).await, MAX_PERMITS - 1);
    drop(work);
    assert_eq!(*seen.lock().expect("no panic"), [MAX_PERMITS - 1]);
    assert_eq!(free(&limiter).await, MAX_PERMITS);

    let broken = layer.layer(service_fn(|_: Request<Body>| {
        let witness = witness();
        let pieces = stream::iter([Err::<&str, _>("broken")]).inspect(move |_| {
            let _working = &witness;
        });
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from_stream(
            pieces,
        ))))
    }));
    let send = async || {
        broken
            .clone()
            .oneshot(request("/"))
            .await
            .expect("infallible")
    };
    drop(send().await);
    assert_eq!(*seen.lock().expect("no panic"), [MAX_PERMITS - 1; 2]);
    // One that breaks is as good as sent.
    let mut body = send().await.into_body();
    assert!(body.frame().await.expect("an error").is_err());
    assert_eq!(free(&limiter).await, MAX_PERMITS);
}
