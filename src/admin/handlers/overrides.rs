//! Overrides: their list, and changes.

use std::time::{Duration, SystemTime};

use axum::extract::State;

use super::keys::{audited, completed, named_key};
use crate::{
    admin::{
        api::{
            KeyText, OverrideChanged, OverrideInfo, OverrideKey, OverrideRequest, OverridesInfo,
        },
        audit::{Audit, Change},
        http::{Answer, Body, Failure, Json, Query, policy_and_limit},
        state::SharedState,
        token::AdminUser,
    },
    clock::Timestamp,
    key::Key,
    limiter::{Limiter, ListedOverride, Override},
    policy::stored_key,
    store::overrides::DateText,
};

/// `GET /overrides`.
pub(crate) async fn list(State(state): SharedState, query: Query) -> Answer<OverridesInfo> {
    let (policy, limit) = policy_and_limit(query)?;
    if let Some(policy) = &policy {
        state.limiter().policy(policy)?;
    }
    let mut found = state.limiter().overrides().await?;
    found.retain(|one| policy.as_ref().is_none_or(|policy| *one.policy == **policy));
    Ok(Json(OverridesInfo {
        total: found.len() as u64,
        overrides: found.iter().take(limit).map(listed).collect(),
    }))
}

/// `PUT /overrides`.
pub(crate) async fn set(
    State(state): SharedState,
    user: AdminUser,
    Body(request): Body<OverrideRequest>,
) -> Answer<OverrideChanged> {
    let limiter = state.limiter();
    let (policy, handle) = (&request.policy, limiter.policy(&request.policy)?);
    let keys = named_key(limiter, policy, &request.key)?;
    let setting = setting(&request, &user, limiter)?;
    let audit = Audit::new(user, Change::SetOverride, &request.key, limiter, &keys);
    completed(audited(audit, async move |audit| {
        let key = first(&keys);
        let before = handle.set_override(key, setting.clone()).await?;
        audit.log_override(before.as_ref(), Some(&setting));
        Ok(OverrideChanged {
            before: before.map(|before| changed(audit, before)),
            after: Some(changed(audit, setting)),
        })
    }))
    .await
}

/// `DELETE /overrides`.
pub(crate) async fn remove(
    State(state): SharedState,
    user: AdminUser,
    Body(request): Body<OverrideKey>,
) -> Answer<OverrideChanged> {
    let limiter = state.limiter();
    // An override may outlive its policy. Its key is listed as it is stored.
    let stored = match &request.key {
        KeyText::One(text) => stored_key(text),
        KeyText::Parts(_) => None,
    };
    let unknown = limiter.policy(&request.policy).err();
    let keys = match stored.filter(|_| unknown.is_some()) {
        Some(key) => vec![(request.policy.clone(), key)],
        None => named_key(limiter, &request.policy, &request.key)?,
    };
    let audit = Audit::new(user, Change::RemoveOverride, &request.key, limiter, &keys);
    let limiter = limiter.clone();
    completed(audited(audit, async move |audit| {
        let (policy, _) = audit.key();
        let before = limiter.remove_override(policy, first(&keys)).await?;
        if let (None, Some(unknown)) = (&before, unknown.clone()) {
            return Err(unknown.into());
        }
        audit.log_override(before.as_ref(), None);
        Ok(OverrideChanged {
            before: before.map(|before| changed(audit, before)),
            after: None,
        })
    }))
    .await
}

fn first(keys: &[(String, Key)]) -> Key {
    keys.first().map_or(Key::missing(), |(_, key)| *key)
}

/// The override of a request.
fn setting(
    request: &OverrideRequest,
    user: &AdminUser,
    limiter: &Limiter,
) -> Result<Override, Failure> {
    let mut setting = match (&request.quota, request.exempt) {
        (Some(quota), false) => Override::quota(quota.parse().map_err(Failure::bad_request)?),
        (None, true) => Override::exempt(),
        _ => {
            return Err(Failure::bad_request(
                "an override has either a quota or \"exempt\": true",
            ));
        }
    };
    setting.until = match (&request.until, request.seconds) {
        (None, None) => None,
        (Some(until), None) => Some(instant(until)?),
        (None, Some(seconds)) => {
            if !(1..=MAX_SECONDS).contains(&seconds) {
                let detail = "seconds: an override lasts for 1 s to a hundred years";
                return Err(Failure::bad_request(detail));
            }
            let now = limiter.override_time()?;
            Some((now + Duration::from_secs(seconds)).to_system_time())
        }
        (Some(_), Some(_)) => {
            return Err(Failure::bad_request("either until or seconds is expected"));
        }
    };
    setting.note = request.note.clone().filter(|note| !note.is_empty());
    // What the store keeps of a longer name.
    let name = user.name();
    let end = (0..=name.len().min(64)).rfind(|end| name.is_char_boundary(*end));
    setting.set_by = Some(name[..end.unwrap_or(0)].to_owned());
    Ok(setting)
}

/// The longest override that is set by its duration.
const MAX_SECONDS: u64 = 100 * 365 * 86_400;

/// The instant of a date.
fn instant(text: &str) -> Result<SystemTime, Failure> {
    let at = text.parse::<jiff::Timestamp>().map_err(|_| {
        Failure::bad_request(
            "until: a date as in RFC 3339 is expected, such as 2027-01-15T08:00:00Z",
        )
    })?;
    Ok(Timestamp::from_micros(at.as_microsecond()).to_system_time())
}

fn listed(listed: &ListedOverride) -> OverrideInfo {
    OverrideInfo {
        unused: listed.unused.clone(),
        ..info(&listed.policy, &listed.key_text, &listed.setting)
    }
}

/// An override that was set or removed.
fn changed(audit: &Audit, setting: Override) -> OverrideInfo {
    let (policy, key) = audit.key();
    info(policy, key, &setting)
}

fn info(policy: &str, key: &str, setting: &Override) -> OverrideInfo {
    OverrideInfo {
        policy: policy.to_owned(),
        key: key.to_owned(),
        quota: setting.own_quota().map(|quota| quota.to_string()),
        exempt: setting.own_quota().is_none(),
        until: setting.ends_at().map(|end| DateText(end).to_string()),
        note: setting.note.clone(),
        set_by: setting.set_by.clone(),
        unused: None,
    }
}
