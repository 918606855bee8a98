//! One timer for a sequence of deadlines, most of which never pass.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is rarely reset, since that may wake the thread of tokio's driver: it stays registered for an earlier deadline, and is reset
/// to the present one when it fires.
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
