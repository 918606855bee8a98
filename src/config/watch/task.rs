//! The task that polls.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, spawn_blocking},
    time::sleep,
};

use super::{
    hangup::Hangup,
    reloader::{Reloader, Trigger},
};

/// Reloads at each poll and each signal, until the task is aborted or its runtime ends.
pub(super) async fn watch(reloader: Arc<Reloader>, interval: Duration, mut hangup: Option<Hangup>) {
    let mut trigger = Trigger::Poll;
    loop {
        let reloader = reloader.clone();
        // The result is in the status and in the log.
        let reload = spawn_blocking(move || reloader.reload(trigger)).await;
        if reload.is_err_and(|error: JoinError| error.is_cancelled()) {
            return;
        }
        trigger = tokio::select! {
            () = sleep(interval) => Trigger::Poll,
            () = received(&mut hangup) => Trigger::Demand,
        };
    }
}

async fn received(hangup: &mut Option<Hangup>) {
    match hangup {
        Some(hangup) => hangup.received().await,
        None => std::future::pending().await,
    }
}
