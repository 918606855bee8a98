//! The application's outcome closures, which may do anything.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{OnceLock, mpsc},
};

use tollgate::outcome::Outcome;
use tollgate_tests::prelude::*;

use crate::charging::{modes::both_modes, support::*};

async fn closures_use_the_admission(world: &World) {
    let seen = Arc::new(OnceLock::<Admission>::new());
    let look = seen.clone();
    let closure = move |_: &Outcome<'_>| {
        let admission = look.get().expect("the handler's admission");
        admission.remaining("p") == Some(9) || admission.remaining("p") == Some(10)
    };
    for policy in both_modes(&window("p", "10/min"), closure) {
        let layer = world.layer([policy]);
        forget(&layer).await;
        let response = serve(&layer, 200, async |admission| drop(seen.set(admission))).await;
        read(response).await.expect("a body");
        assert_eq!(used(layer.limiter(), "p").await, 1);
    }
}

#[test]
fn an_outcome_closure_may_use_the_admission_of_its_request() {
    let (done, is_done) = mpsc::channel();
    // Separately: a closure that waits for its own admission would never return.
    let tested = thread::spawn(move || {
        current_thread().block_on(async {
            for world in World::both() {
                closures_use_the_admission(&world).await;
            }
        });
        done.send(()).expect("the test");
    });
    match is_done.recv_timeout(TEST_TIMEOUT) {
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => tested.join().expect("it passes"),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the closure waits for the admission"),
    }
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
