//! Writes the settings that are in force in a limiter or a layer as a document.

use std::{any::Any, collections::BTreeMap};

use http::{HeaderMap, HeaderValue};

use super::document::Document;
use crate::{
    RateLimitLayer,
    extract::section::SharedByKeys,
    headers::RateLimitHeaders,
    limiter::Limiter,
    policy::{Policy, PolicySettings, charging::Charge, cost::Cost, skip::Conditions},
    respond::LayerSettings,
    secret::Secret,
    setting::{CODE, Slot},
    store::{
        Store,
        memory::{DEFAULT_MAX_KEYS, MemoryStore},
        section::StoreSection,
    },
};

impl Limiter {
    /// The document of the settings that are in force, without those that have the default value.
    ///
    /// What was registered by name in a [`Registry`](crate::config::Registry) stands there by its name. Other code of the
    /// application is `code`, and so is a store that was opened from a pool: a document with it can't be loaded. Secrets stand
    /// there as their source, such as `${REDIS_URL}`, or as `***`. Paths of files are relative to the current folder.
    pub fn document(&self) -> Document {
        document(self, LayerSettings::default())
    }
}

impl RateLimitLayer {
    /// The document of the settings of the layer and its limiter that are in force: see [`Limiter::document`].
    pub fn document(&self) -> Document {
        document(self.limiter(), self.settings())
    }
}

fn document(limiter: &Limiter, layer: LayerSettings) -> Document {
    let core = limiter.local_ref();
    let lists = core.lists.as_deref();
    let lists_of = |deny| lists.map_or_else(Vec::new, |lists| lists.sections(deny));
    let SharedByKeys { client_ip, bearer } = &core.shared_by_keys;
    let has_hash_key = bearer.is_some();
    let policies = core.policies.iter().map(|bound| {
        let policy = &bound.policy;
        (policy.name(), without_code(policy, has_hash_key))
    });
    Document {
        enabled: unless_default(layer.is_enabled(), true),
        headers: unless_default(layer.headers().clone(), RateLimitHeaders::default()),
        rejections: unless_default(layer.rejections(), Default::default()),
        on_rejection: layer.on_rejection.as_ref().map(Slot::without_code),
        refund_handler_rejections: unless_default(layer.refunds_handler_rejections(), false),
        rejection: layer.rejection,
        rejection_headers: shown_headers(layer.rejection_headers.as_ref()),
        on_store_error: core.on_store_error,
        on_misconfiguration: unless_default(core.on_misconfiguration, Default::default()),
        on_unknown_address: lists
            .and_then(|lists| unless_default(lists.unknown_address_action(), Default::default())),
        count_preflights: unless_default(core.counts_preflights, false),
        skip: conditions(&core.skip),
        only: conditions(&core.only),
        deny: lists_of(true),
        allow: lists_of(false),
        client_ip: client_ip.clone(),
        bearer: bearer.clone(),
        store: store(&*core.store),
        policies: policies.collect(),
        ..Document::default()
    }
}

fn shown_headers(headers: Option<&HeaderMap>) -> BTreeMap<String, String> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = headers.into_iter().flatten();
    headers
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

fn unless_default<T: PartialEq>(value: T, default: T) -> Option<T> {
    (value != default).then_some(value)
}

/// The settings of a policy as a document has them.
fn without_code(policy: &Policy, has_hash_key: bool) -> PolicySettings {
    let key = |slot: Slot<_>| Slot::named(key_text(slot.text_or_code(), has_hash_key));
    let settings = policy.settings();
    PolicySettings {
        strategy: settings.strategy.map(|slot| slot.without_code()),
        key: settings.key.map(key),
        caller: settings.caller.map(key),
        cost: settings.cost.map(|cost| match cost {
            Cost::With(slot) => Cost::With(slot.without_code()),
            cost => cost,
        }),
        charge: settings.charge.map(|charge| match charge {
            Charge::Arrival => Charge::Arrival,
            Charge::After(slot) => Charge::After(slot.without_code()),
            Charge::RefundUnless(slot) => Charge::RefundUnless(slot.without_code()),
        }),
        tier: settings.tier.map(|slot| slot.without_code()),
        quota_with: settings.quota_with.map(|slot| slot.without_code()),
        skip: conditions(&settings.skip),
        only: conditions(&settings.only),
        ..settings
    }
}

fn conditions(conditions: &Conditions) -> Conditions {
    let mut conditions = conditions.clone();
    for slot in &mut conditions.with {
        *slot = slot.without_code();
    }
    conditions
}

/// The text of a key extractor. The key under which tokens are hashed is left out, since a document has it in `bearer`; without
/// that section the text is `code`.
fn key_text(text: &str, has_hash_key: bool) -> String {
    const KEYED: &str = "bearer hash_key ";
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once(KEYED) {
        if !has_hash_key {
            return CODE.to_owned();
        }
        plain.push_str(before);
        plain.push_str(KEYED.split(' ').next().unwrap_or_default());
        rest = after.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    plain.push_str(rest);
    plain
}

fn store(store: &dyn Store) -> Option<StoreSection> {
    let any: &dyn Any = store;
    if let Some(store) = any.downcast_ref::<MemoryStore>() {
        let max_keys = Some(store.max_keys()).filter(|keys| *keys != DEFAULT_MAX_KEYS)?;
        return Some(StoreSection {
            max_keys: Some(max_keys),
            ..StoreSection::default()
        });
    }
    #[cfg(feature = "redis")]
    if let Some(store) = any.downcast_ref::<crate::RedisStore>() {
        return Some(store.settings().section().clone());
    }
    Some(StoreSection {
        url: Some(Secret::text(CODE)),
        ..StoreSection::default()
    })
}
