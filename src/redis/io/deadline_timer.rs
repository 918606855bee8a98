//! One timer for a sequence of deadlines, most of which never pass.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is rarely reset. Registering a timer with tokio may wake its driver's thread, and hardly any deadline passes: so
/// it stays registered for a deadline that was met, fires early for the later ones, and is reset only then.
#[derive(Debug, Default)]
pub(crate) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    /// Ready once `deadline` has passed.
    pub(crate) fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let set = self
            .0
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if set.deadline() > deadline {
            set.as_mut().reset(deadline);
        }
        while set.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            set.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
