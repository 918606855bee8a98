//! A trip: takes a batch to the server, and hands the answers out.

use std::sync::Arc;

use redis::{RedisError, Value};
use tokio::time::{Instant, sleep_until};

use super::{
    Shared,
    batch::Batch,
    fault,
    link::{Road, Way},
    question::Question,
    reply,
};
use crate::error::StoreError;

/// Takes a batch to the server, and hands its answers out, or tells everybody why not. No one waits past his deadline.
/// Brings the empty batch back, and questions that are to be asked again.
pub(super) async fn carry(
    shared: Arc<Shared>,
    road: Arc<Road>,
    mut batch: Batch,
) -> (Batch, Vec<Question>) {
    let mut again = Vec::new();
    let error = match travel(&shared, &road, &mut batch).await {
        Ok((reply, way)) => match reply::deliver(&mut batch, reply) {
            Ok(delivered) => {
                shared.note_server_time(delivered.at);
                if delivered.severs {
                    road.close(&way).await;
                }
                again = delivered.stale;
                again
                    .iter_mut()
                    .for_each(|question| question.told_time = true);
                None
            }
            Err(error) => Some(error),
        },
        Err(Stopped::Late(way)) => {
            // It may never answer again.
            if let Some(way) = way {
                road.close(&way).await;
            }
            None
        }
        Err(Stopped::Failed(error, way)) => {
            if fault::severs(&error) {
                road.close(&way).await;
            }
            Some(fault::of(&error))
        }
        Err(Stopped::Unlinked(error)) => Some(error),
    };
    if let Some(error) = error {
        batch
            .drain()
            .for_each(|question| question.fail(error.clone()));
    }
    batch.clear();
    (batch, again)
}

/// Why a trip brought no answer.
enum Stopped {
    /// The server's own error, or a broken connection.
    Failed(RedisError, Way),
    /// There is no connection to be had; nothing was sent.
    Unlinked(StoreError),
    /// Everybody's deadline has passed.
    Late(Option<Way>),
}

/// There and back. While it is under way, those whose deadline passes are told so.
async fn travel(shared: &Shared, road: &Road, batch: &mut Batch) -> Result<(Value, Way), Stopped> {
    let way = on_time(batch, road.way(&shared.source)).await;
    let way = way.ok_or(Stopped::Late(None))?;
    let mut way = way.map_err(Stopped::Unlinked)?;
    let script = shared.script();
    let mut whole = false;
    loop {
        let now = shared.server_time();
        let call = batch.call(&script, whole, now, &shared.generation);
        match on_time(batch, way.query(&call)).await {
            None => return Err(Stopped::Late(Some(way))),
            Some(Ok(reply)) => return Ok((reply, way)),
            // The server was restarted, or its scripts were flushed: the text goes along, on the same connection.
            Some(Err(error)) if fault::lacks_script(&error) && !whole => whole = true,
            Some(Err(error)) => return Err(Stopped::Failed(error, way)),
        }
    }
}

/// Awaits a part of a trip, telling those whose deadline passes meanwhile; `None` once it has passed for all.
async fn on_time<T>(batch: &mut Batch, part: impl Future<Output = T>) -> Option<T> {
    let mut part = std::pin::pin!(part);
    while let Some(deadline) = batch.next_deadline() {
        tokio::select! {
            biased;
            result = &mut part => return Some(result),
            () = sleep_until(deadline) => batch.time_out(Instant::now()),
        }
    }
    None
}
