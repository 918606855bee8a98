//! A trip: takes a batch to the server, and hands the answers out.

use std::{sync::Arc, time::Duration};

use redis::{RedisError, Value};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Shared,
    batch::Batch,
    fault,
    link::Way,
    question::Question,
    reply,
    route::{Detour, Route},
};
use crate::error::StoreError;

/// Nodes of a cluster that point to each other are not asked faster than this.
const PAUSE: Duration = Duration::from_millis(5);

/// How often a node's word is followed without a pause.
const QUICK_DETOURS: usize = 3;

/// Takes a batch to the server, and hands its answers out, or tells everybody why not. No one waits past his deadline.
/// Brings the empty batch back, and questions that are to be asked again.
pub(super) async fn carry(
    shared: Arc<Shared>,
    route: Arc<Route>,
    mut batch: Batch,
) -> (Batch, Vec<Question>) {
    let mut again = Vec::new();
    let error = match travel(&shared, &route, &mut batch).await {
        Ok((reply, way)) => match reply::deliver(&mut batch, reply) {
            Ok(delivered) => {
                shared.note_server_time(delivered.at);
                if delivered.severs {
                    way.close().await;
                    route.doubt();
                }
                if batch.lifts() {
                    shared.announce(delivered.at);
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
                way.close().await;
            }
            route.doubt();
            None
        }
        Err(Stopped::Failed(error, way)) => {
            if fault::severs(&error) {
                way.close().await;
            }
            route.doubt();
            Some(fault::of(&error))
        }
        Err(Stopped::Unlinked(error)) => {
            route.doubt();
            Some(error)
        }
        Err(Stopped::Parted) => {
            again = batch.drain().collect();
            again.iter_mut().for_each(|question| question.alone = true);
            None
        }
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
    /// Some of the keys are here and some elsewhere; nothing ran. Each is to be asked about by itself.
    Parted,
}

/// There and back. While it is under way, those whose deadline passes are told so.
async fn travel(
    shared: &Shared,
    route: &Route,
    batch: &mut Batch,
) -> Result<(Value, Way), Stopped> {
    let mut way = go(batch, route.way()).await?;
    let script = shared.script();
    let (mut whole, mut asking, mut detours) = (false, false, 0);
    loop {
        let now = shared.server_time();
        let call = batch.call(&script, whole, now, shared.generation.declared());
        let reply = match asking {
            false => on_time(batch, way.query(&call)).await,
            true => on_time(batch, way.query_asking(&call)).await,
        };
        let error = match reply {
            None => return Err(Stopped::Late(Some(way))),
            Some(Ok(reply)) => return Ok((reply, way)),
            Some(Err(error)) => error,
        };
        // The server was restarted, or its scripts were flushed: the text goes along, on the same connection.
        if fault::lacks_script(&error) && !whole {
            whole = true;
            continue;
        }
        let Some(detour) = route.detour(&error) else {
            return Err(Stopped::Failed(error, way));
        };
        if matches!(detour, Detour::Again) && batch.entries().nth(1).is_some() {
            return Err(Stopped::Parted);
        }
        detours += 1;
        if detours > QUICK_DETOURS || matches!(detour, Detour::Again) {
            let pause = async { Ok(sleep(PAUSE).await) };
            go(batch, pause).await?;
        }
        asking = matches!(detour, Detour::Asking(_));
        way = match detour {
            Detour::Asking(node) => go(batch, route.way_to(&node)).await?,
            Detour::Moved | Detour::Again => go(batch, route.way()).await?,
        };
    }
}

/// Awaits what leads to a connection.
async fn go<T>(
    batch: &mut Batch,
    part: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, Stopped> {
    let gone = on_time(batch, part).await;
    gone.ok_or(Stopped::Late(None))?.map_err(Stopped::Unlinked)
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
