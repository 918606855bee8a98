//! The application's closures, which may do anything.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use tollgate::{observe::Event, outcome::Outcome};
use tollgate_tests::{bare_thread::on_bare_thread, prelude::*};

use crate::charging::{outcomes::both_modes, support::*};

async fn closures_use_the_admission(world: &World) {
    for mode in [0, 1] {
        let seen = Arc::new(OnceLock::<Admission>::new());
        let admission = seen.clone();
        let left = move || admission.get().and_then(|own| own.remaining("p"));
        let by_outcome = left.clone();
        let outcome = move |_: &Outcome<'_>| by_outcome().is_some_and(|left| left >= 9);
        let policies = both_modes(&window("p", "10/min"), outcome);
        let fields = RateLimitHeaders::custom(move |_, fields| {
            fields.insert("x-left", left().expect("the admission").into());
        });
        let layer = world.layer([policies[mode].clone()]);
        let layer = layer.headers(fields.clone());
        forget(&layer).await;
        let keep = async |own: Admission| {
            let own = seen.get_or_init(|| own);
            fields.add_to(&mut Response::new(()), own);
        };
        let response = serve(&layer, 200, keep).await;
        assert_eq!(response.headers()["x-left"], ["10", "9"][mode]);
        read(response).await.expect("a body");
        assert_eq!(used(layer.limiter(), "p").await, 1);
    }
}

#[test]
fn closures_for_the_outcome_and_the_fields_may_use_the_admission_of_their_request() {
    // One that waits for its own admission would never return.
    on_bare_thread(|| {
        current_thread().block_on(async {
            for world in World::both() {
                closures_use_the_admission(&world).await;
            }
        });
    });
}

/// Reads the admission of the request whose permit is held.
#[derive(Clone, Debug, Default)]
struct Reader {
    admission: Arc<OnceLock<Admission>>,
    left: Arc<OnceLock<Option<u64>>>,
}

impl Observer for Reader {
    fn on_event(&self, event: &Event<'_>) {
        if let (Event::PermitsHeld { .. }, Some(admission)) = (event, self.admission.get()) {
            self.left.get_or_init(|| admission.remaining("p"));
        }
    }
}

#[test]
fn an_observer_of_an_inner_layer_may_use_the_admission_of_its_request() {
    on_bare_thread(|| {
        current_thread().block_on(async {
            for world in World::both() {
                let reader = Reader::default();
                let permit = Policy::new("permit", Quota::concurrent(1)).key(extract::global());
                let inner = world
                    .builder()
                    .policy(permit)
                    .observe(Arc::new(reader.clone()));
                let inner = RateLimitLayer::new(inner.build().expect("a limiter"));
                let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(text(200)));
                let admission = reader.admission.clone();
                let inner = inner
                    .layer(handler)
                    .map_request(move |request: Request<()>| {
                        let outer = request.extensions().get::<Admission>();
                        admission.get_or_init(|| outer.expect("the admission").clone());
                        request
                    });
                let outer = world.layer([window("p", "10/min")]);
                forget(&outer).await;
                let Ok(response) = outer.layer(inner).oneshot(request()).await;
                assert_eq!(response.status(), 200);
                assert_eq!(reader.left.get(), Some(&Some(9)));
            }
        });
    });
}

#[tokio::test]
async fn a_closure_that_panics_while_a_panic_unwinds_charges_and_does_not_abort() {
    for world in World::both() {
        let panics = |_: &Outcome<'_>| panic!("a mistake of the application");
        for policy in both_modes(&window("p", "10/min"), panics) {
            let layer = world.layer([policy]);
            forget(&layer).await;
            let response = respond(&layer, streamed(vec![data(), data()])).await;
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _answer = response;
                panic!("while the body is held");
            }));
            assert!(unwound.is_err());
            assert_eq!(used(layer.limiter(), "p").await, 1);
        }
    }
}
