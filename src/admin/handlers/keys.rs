//! The routes about a key: its status, and changes.

use std::{
    future::poll_fn,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    task::Poll,
    time::Duration,
};

use axum::extract::State;
use http::StatusCode;

use super::statuses_of;
use crate::{
    admin::{
        api::{
            BlockRequest, Blocked, BlockedKey, Callers, CallersRequest, CreditRequest, Credited,
            KeyText, PeekRequest, Reset, ResetRequest, Status, UnblockRequest, Unblocked,
        },
        audit::{Audit, Change},
        http::{Answer, Body, Failure, Json},
        key_text,
        state::SharedState,
        token::AdminUser,
    },
    error::ConfigError,
    key::Key,
    limiter::{Limiter, PolicyRole},
    policy::caller_text,
    quota::Quota,
    strategy::TierRefills,
};

/// The longest block, ten years.
const MAX_BLOCK_SECONDS: u64 = 10 * 365 * 86_400;

/// The policies of a call, each with its key.
type NamedKeys = Vec<(String, Key)>;

/// `POST /peek`.
pub(crate) async fn peek(
    State(state): SharedState,
    Body(request): Body<PeekRequest>,
) -> Answer<Status> {
    let limiter = state.limiter();
    let keys = named_key(limiter, &request.policy, &request.key)?;
    let quotas = quota_of_tier(limiter, &request.policy, request.quota.as_deref())?;
    let status = limiter.peek_keys(keys.into(), quotas).await?;
    only(statuses_of(&status), &request.policy).map(Json)
}

/// `POST /reset`.
pub(crate) async fn reset(
    State(state): SharedState,
    user: AdminUser,
    Body(request): Body<ResetRequest>,
) -> Answer<Reset> {
    let keys = match &request.policy {
        Some(policy) => named_key(state.limiter(), policy, &request.key)?,
        None => all_keys(state.limiter(), &request.key, |_| true)?,
    };
    let audit = Audit::new(user, Change::Reset, &request.key, state.limiter(), &keys);
    completed(audited(audit, async move |audit| {
        let limiter = state.limiter();
        let before = audit.shown(statuses_of(&limiter.reset(keys.clone()).await?));
        let after = statuses(limiter, keys).await;
        audit.log(&before, after.as_deref().unwrap_or_default());
        let after = audit.shown(after?);
        Ok(Reset { before, after })
    }))
    .await
}

/// `POST /credit`.
pub(crate) async fn credit(
    State(state): SharedState,
    user: AdminUser,
    Body(request): Body<CreditRequest>,
) -> Answer<Credited> {
    let CreditRequest {
        policy,
        key: text,
        units,
        quota,
    } = request;
    let handle = state.limiter().policy(&policy)?;
    let keys = named_key(state.limiter(), &policy, &text)?;
    let quotas = quota_of_tier(state.limiter(), &policy, quota.as_deref())?;
    let audit = Audit::new(
        user,
        Change::Credit { units },
        &text,
        state.limiter(),
        &keys,
    );
    completed(audited(audit, async move |audit| {
        let limiter = state.limiter();
        let before = limiter.peek_keys(keys.clone().into(), quotas.clone());
        let before = statuses_of(&before.await?);
        let key = keys.first().map_or(Key::missing(), |(_, key)| *key);
        // The first quota of a name counts.
        let by_request = limiter.policies().into_iter();
        let by_request = by_request.filter(|policy| policy.has_quota_of_request());
        let own = by_request.map(|policy| (policy.name().to_owned(), policy.quota()));
        let credit = quotas.into_iter().chain(own);
        let credit = credit.fold(handle.credit(key, units), |credit, (name, quota)| {
            credit.quota_for(name, quota)
        });
        let credited = credit.await?;
        let after = statuses_of(credited.status());
        audit.log(&before, &after);
        Ok(Credited {
            credited: credited.units(),
            after: only(after, &policy)?,
        })
    }))
    .await
}

/// `POST /block`.
pub(crate) async fn block(
    State(state): SharedState,
    user: AdminUser,
    Body(request): Body<BlockRequest>,
) -> Answer<Blocked> {
    let seconds = request.seconds;
    if !(1..=MAX_BLOCK_SECONDS).contains(&seconds) {
        return Err(Failure::bad_request(
            "seconds: a key is blocked for 1 s to ten years",
        ));
    }
    let keys = banned_keys(state.limiter(), request.policy.as_deref(), &request.key)?;
    hides_credentials(&request.key, &keys)?;
    let audit = Audit::new(
        user,
        Change::Block { seconds },
        &request.key,
        state.limiter(),
        &keys,
    );
    completed(audited(audit, async move |audit| {
        let limiter = state.limiter();
        let before = statuses(limiter, keys.clone()).await?;
        let time = Duration::from_secs(seconds);
        limiter.block(keys.clone(), time).await?;
        let after = statuses(limiter, keys).await;
        audit.log(&before, after.as_deref().unwrap_or_default());
        let blocked = blocked_keys(&audit.shown(after?));
        Ok(Blocked { blocked })
    }))
    .await
}

/// `POST /unblock`.
pub(crate) async fn unblock(
    State(state): SharedState,
    user: AdminUser,
    Body(request): Body<UnblockRequest>,
) -> Answer<Unblocked> {
    let keys = banned_keys(state.limiter(), request.policy.as_deref(), &request.key)?;
    let audit = Audit::new(user, Change::Unblock, &request.key, state.limiter(), &keys);
    completed(audited(audit, async move |audit| {
        let limiter = state.limiter();
        let before = audit.shown(statuses_of(&limiter.unblock(keys.clone()).await?));
        let after = statuses(limiter, keys).await;
        audit.log(&before, after.as_deref().unwrap_or_default());
        let after = audit.shown(after?);
        Ok(Unblocked {
            unblocked: blocked_keys(&before),
            before,
            after,
        })
    }))
    .await
}

/// `POST /callers`.
pub(crate) async fn callers(
    State(state): SharedState,
    Body(request): Body<CallersRequest>,
) -> Answer<Callers> {
    let handle = state.limiter().policy(&request.policy)?;
    let key = key_text::require(&handle.policy()?, &request.key)?;
    let callers = handle.callers(key).await?;
    Ok(Json(Callers {
        callers: callers.iter().map(caller_text).collect(),
    }))
}

/// Completes a change that was begun, also if the client disconnects.
pub(super) async fn completed<T: Send + 'static>(
    change: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Answer<T> {
    let changed = match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn(change).await,
        Err(_) => Ok(change.await),
    };
    changed
        .unwrap_or_else(|_| {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(Failure::new(status, "the change was not completed"))
        })
        .map(Json)
}

/// Makes a change, and logs it if the store fails or code of the application panics. A change that a policy does not support
/// is not begun.
pub(super) async fn audited<T>(
    audit: Audit,
    change: impl AsyncFnOnce(&Audit) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let changed = unless_panicked(change(&audit)).await;
    if let Err(failure) = &changed
        && failure.is_server_error()
    {
        audit.log_failure(failure);
    }
    changed
}

/// The result of a change, in which code of the application may panic. The panic hook has reported the panic.
async fn unless_panicked<T>(
    change: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut change = pin!(change);
    poll_fn(|cx| {
        let poll = AssertUnwindSafe(|| change.as_mut().poll(cx));
        panic::catch_unwind(poll).unwrap_or_else(|_| {
            let detail =
                "the change was not completed: a store, a strategy or an observer panicked";
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Poll::Ready(Err(Failure::new(status, detail)))
        })
    })
    .await
}

/// The key of a text under a policy.
pub(super) fn named_key(
    limiter: &Limiter,
    policy: &str,
    text: &KeyText,
) -> Result<NamedKeys, Failure> {
    let key = key_text::require(&limiter.policy(policy)?.policy()?, text)?;
    Ok(vec![(policy.to_owned(), key)])
}

/// The keys of a text under all policies of these roles that can read it.
fn all_keys(
    limiter: &Limiter,
    text: &KeyText,
    has_role: impl Fn(PolicyRole) -> bool,
) -> Result<NamedKeys, Failure> {
    let set = limiter.policy_set();
    let policies = set.policies.iter();
    let policies = policies.filter(|bound| has_role(bound.role));
    let keys = policies.filter_map(|bound| {
        let key = key_text::read(&bound.policy, text)?;
        Some((bound.policy.name().to_owned(), key))
    });
    let keys: NamedKeys = keys.collect();
    if keys.is_empty() {
        Err(Failure::bad_request(
            "there is no such policy whose keys are made of this text",
        ))
    } else {
        Ok(keys)
    }
}

/// The key of a text under a ban, or under all that can read it.
fn banned_keys(
    limiter: &Limiter,
    policy: Option<&str>,
    text: &KeyText,
) -> Result<NamedKeys, Failure> {
    match policy {
        Some(policy) => named_key(limiter, policy, text),
        None => all_keys(limiter, text, |role| role == PolicyRole::Ban),
    }
}

/// Fails if a block would store a credential as readable text, under a ban whose keys are.
fn hides_credentials(text: &KeyText, keys: &[(String, Key)]) -> Result<(), Failure> {
    if key_text::hash_of_credential(text, keys).is_none() {
        return Ok(());
    }
    let readable = keys.iter().filter(|(_, key)| !key.has_hash());
    let readable: Vec<&str> = readable.map(|(policy, _)| &**policy).collect();
    if readable.is_empty() {
        Ok(())
    } else {
        Err(Failure::bad_request(format!(
            "the key's text is a credential under one ban, and would be stored as readable text under {readable:?}: name the policy"
        )))
    }
}

/// The quota of a key's tier, by the policy's name. One that the strategy can't count would give way to the policy's own.
fn quota_of_tier(
    limiter: &Limiter,
    policy: &str,
    quota: Option<&str>,
) -> Result<Vec<(String, Quota)>, Failure> {
    let Some(quota) = quota else {
        return Ok(Vec::new());
    };
    let quota = quota.parse().map_err(Failure::bad_request)?;
    let set = limiter.policy_set();
    let bound = set.named(policy)?;
    let counted = bound.policy.bind(&quota, &TierRefills::default());
    counted.map_err(|invalid| Failure::bad_request(ConfigError::of(policy, invalid)))?;
    Ok(vec![(policy.to_owned(), quota)])
}

async fn statuses(limiter: &Limiter, keys: NamedKeys) -> Result<Vec<Status>, Failure> {
    let status = limiter.peek_keys(keys.into(), Vec::new()).await?;
    Ok(statuses_of(&status))
}

/// The keys that are blocked by these statuses.
fn blocked_keys(statuses: &[Status]) -> Vec<BlockedKey> {
    let blocked = statuses.iter().filter_map(|status| {
        Some(BlockedKey {
            policy: status.policy.clone(),
            key: status.key.clone(),
            ends_at: status.blocked_until.clone()?,
        })
    });
    blocked.collect()
}

/// The status under the policy of that name.
fn only(statuses: Vec<Status>, policy: &str) -> Result<Status, Failure> {
    let mut statuses = statuses.into_iter();
    let status = statuses.find(|status| status.policy == policy);
    status.ok_or_else(|| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Failure::new(status, "the store answered without the policy")
    })
}
