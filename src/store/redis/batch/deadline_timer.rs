//! A timer for many deadlines, one after the other.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// To set a timer wakes the thread that watches the clock, and hardly any deadline ever passes. So it stays set for one
/// that has been kept, goes off early for those that come after it, and is set anew only then.
#[derive(Debug, Default)]
pub(crate) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    /// Whether a deadline has passed; else wakes when it does.
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

    async fn passes(alarm: &mut DeadlineTimer, deadline: Instant) {
        poll_fn(|cx| alarm.poll(deadline, cx)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_off_at_each_deadline_be_it_sooner_or_later_than_the_last() {
        let (mut alarm, start) = (DeadlineTimer::default(), Instant::now());
        for millis in [50, 80, 90, 300, 301] {
            let deadline = start + Duration::from_millis(millis);
            let sooner = start + Duration::from_secs(10);
            // A deadline that is kept.
            poll_fn(|cx| {
                assert!(alarm.poll(sooner, cx).is_pending());
                Poll::Ready(())
            })
            .await;
            passes(&mut alarm, deadline).await;
            assert_eq!(Instant::now(), deadline);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_off_late_for_nobody_if_it_was_set_for_one_that_was_kept() {
        let (mut alarm, start) = (DeadlineTimer::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        poll_fn(|cx| {
            assert!(alarm.poll(at(100), cx).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::time::sleep_until(at(99)).await;
        passes(&mut alarm, at(199)).await;
        assert_eq!(Instant::now(), at(199));
        // One that is past already.
        passes(&mut alarm, at(150)).await;
        assert_eq!(Instant::now(), at(199));
    }
}
