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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::poll_fn, time::Duration};

    async fn passes(timer: &mut DeadlineTimer, deadline: Instant) {
        poll_fn(|cx| timer.poll(deadline, cx)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_fires_at_each_deadline_whether_earlier_or_later_than_the_last() {
        let (mut timer, start) = (DeadlineTimer::default(), Instant::now());
        for millis in [50, 80, 90, 300, 301] {
            let deadline = start + Duration::from_millis(millis);
            let sooner = start + Duration::from_secs(10);
            // A deadline that is met.
            poll_fn(|cx| {
                assert!(timer.poll(sooner, cx).is_pending());
                Poll::Ready(())
            })
            .await;
            passes(&mut timer, deadline).await;
            assert_eq!(Instant::now(), deadline);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_never_fires_late_after_a_deadline_that_was_met() {
        let (mut timer, start) = (DeadlineTimer::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        poll_fn(|cx| {
            assert!(timer.poll(at(100), cx).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::time::sleep_until(at(99)).await;
        passes(&mut timer, at(199)).await;
        assert_eq!(Instant::now(), at(199));
        // A deadline in the past.
        passes(&mut timer, at(150)).await;
        assert_eq!(Instant::now(), at(199));
    }
}
