//! What is in force: policies, configuration, and what shadow policies would reject.

use axum::extract::State;

#[cfg(feature = "config")]
use crate::admin::api::WatchInfo;
use crate::{
    admin::{
        api::{ConfigInForce, LeaseSettings, Policies, PolicyInfo, Role, Shadow, Shadows},
        http::{Answer, Json, Query},
        state::SharedState,
    },
    limiter::PolicyRole,
    policy::Policy,
};

/// What stands for code of the application that has no text.
const CODE: &str = "code";

/// `GET /policies`.
pub(crate) async fn policies(State(state): SharedState, query: Query) -> Answer<Policies> {
    let [] = query.only([])?;
    let set = state.limiter().policy_set();
    let policies = set.policies.iter().map(|bound| {
        let policy = &bound.policy;
        // The quota and the strategy of a block list mean nothing.
        let quota = (!policy.is_block_list()).then(|| policy.quota());
        let with_period = quota.filter(|quota| !quota.is_concurrent());
        let strategy = match quota {
            Some(_) => policy.strategy_or_default().config_text(),
            None => Some("block_list".into()),
        };
        PolicyInfo {
            name: policy.name().to_owned(),
            role: match bound.role {
                PolicyRole::Live => Role::Live,
                PolicyRole::Ban => Role::Ban,
                PolicyRole::Shadow { .. } => Role::Shadow,
            },
            quota: quota.map(|quota| quota.to_string()),
            units: quota.map(|quota| quota.amount()),
            period_seconds: with_period.map(|quota| quota.period().as_secs_f64()),
            burst: quota.map(|_| bound.limit.info().capacity),
            strategy: strategy.map_or_else(|| CODE.to_owned(), |text| text.into_owned()),
            key: key_text(policy),
            lease: policy.lease_setting().map(|lease| LeaseSettings {
                max_units: lease.most(),
                ttl_ms: lease.lifetime().as_micros() as f64 / 1_000.0,
            }),
        }
    });
    Ok(Json(Policies {
        generation: set.generation,
        policies: policies.collect(),
    }))
}

/// What the key of a policy is, as in a document.
fn key_text(policy: &Policy) -> String {
    if policy.is_by_hand() {
        return "by_hand".to_owned();
    }
    let text = policy.extractor().config_text();
    text.map_or_else(|| CODE.to_owned(), |text| text.into_owned())
}

/// `GET /shadows`.
pub(crate) async fn shadows(State(state): SharedState, query: Query) -> Answer<Shadows> {
    let [] = query.only([])?;
    let limiter = state.limiter();
    let shadows = limiter.policies().into_iter().filter_map(|policy| {
        let stats = limiter.shadow_stats(policy.name())?;
        Some(Shadow {
            policy: policy.name().to_owned(),
            evaluated: stats.evaluated,
            would_reject: stats.would_reject,
        })
    });
    Ok(Json(Shadows {
        shadows: shadows.collect(),
    }))
}

/// `GET /config`.
#[cfg(feature = "config")]
pub(crate) async fn config(State(state): SharedState, query: Query) -> Answer<ConfigInForce> {
    let [] = query.only([])?;
    let watch = state.watcher.as_deref();
    let watch = watch.map(|watcher| (watcher.path(), watcher.status()));
    let watched = watch.as_ref().and_then(|(_, status)| status.text());
    let document = watched.or(state.document.as_deref()).map(str::to_owned);
    Ok(Json(ConfigInForce {
        document,
        watch: watch.map(|(path, status)| watch_info(path, &status)),
    }))
}

/// `GET /config`, without documents.
#[cfg(not(feature = "config"))]
pub(crate) async fn config(query: Query) -> Answer<ConfigInForce> {
    let [] = query.only([])?;
    Ok(Json(ConfigInForce::default()))
}

#[cfg(feature = "config")]
fn watch_info(path: &std::path::Path, status: &crate::config::WatchStatus) -> WatchInfo {
    let time = |at: Option<std::time::SystemTime>| {
        let at = jiff::Timestamp::try_from(at?).ok()?;
        Some(at.to_string())
    };
    WatchInfo {
        path: path.display().to_string(),
        hash: status.hash().map(str::to_owned),
        loaded_at: time(status.loaded_at()),
        last_attempt_at: time(status.last_attempt()),
        last_failure: status.error().map(ToString::to_string),
        loads: status.loads(),
        failures: status.failures(),
    }
}
