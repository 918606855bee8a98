//! The keys that are blocked.

use axum::extract::State;

use super::{millis, rfc3339};
use crate::{
    admin::{
        api::{BlockInfo, BlocksInfo, IncompleteReason},
        http::{Answer, Json, Query, policy_and_limit},
        state::SharedState,
    },
    limiter::Block,
    store::Incomplete,
};

/// `GET /blocks`.
pub(crate) async fn blocks(State(state): SharedState, query: Query) -> Answer<BlocksInfo> {
    let (policy, limit) = policy_and_limit(query)?;
    let _search = state.search.lock().await;
    let blocks = match policy {
        Some(policy) => state.limiter().policy(&policy)?.blocks(limit).await?,
        None => state.limiter().blocks(limit).await?,
    };
    Ok(Json(BlocksInfo {
        complete: blocks.is_complete(),
        incomplete: blocks.incomplete().map(reason),
        blocks: blocks.iter().map(block).collect(),
    }))
}

fn reason(incomplete: Incomplete) -> IncompleteReason {
    match incomplete {
        Incomplete::Limit => IncompleteReason::Limit,
        Incomplete::Timeout => IncompleteReason::Timeout,
        Incomplete::KeysMoved => IncompleteReason::KeysMoved,
    }
}

fn block(block: &Block) -> BlockInfo {
    BlockInfo {
        policy: block.policy().to_owned(),
        key: block.key_text(),
        ends_at: rfc3339(block.ends_at()),
        ends_in_ms: millis(block.ends_in()),
    }
}
