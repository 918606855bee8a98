//! From a limiter or a layer to the document that is in force.

use std::any::Any;

use super::{
    document::Document,
    tree::{self, Entry, Node, Value},
};
use crate::{
    access::Lists,
    layer::RateLimitLayer,
    limiter::Limiter,
    redact::CODE,
    setting::{Setting, SettingValue},
    store::{
        Store,
        memory::{DEFAULT_MAX_KEYS, MemoryStore},
    },
};

impl Limiter {
    /// The document of the settings that are in force, without those that have the default value.
    ///
    /// What was registered by name in a [`Registry`](crate::config::Registry) stands there by its name. Other code of the
    /// application is `code`, and so is a store that was opened from a pool: a document with it can't be loaded. Secrets stand
    /// there as their source, such as `${REDIS_URL}`, or as `***`. Paths of files are relative to the current folder.
    pub fn document(&self) -> Document {
        document(self, Vec::new())
    }
}

impl RateLimitLayer {
    /// The document of the settings of the layer and its limiter that are in force: see [`Limiter::document`].
    pub fn document(&self) -> Document {
        document(self.limiter(), self.settings())
    }
}

fn document(limiter: &Limiter, layer: Vec<Setting>) -> Document {
    let core = limiter.local_ref();
    let settings = layer.into_iter().chain(core.settings());
    let mut entries: Vec<Entry> = set(settings).collect();
    let lists = core
        .lists
        .as_deref()
        .map(Lists::sections)
        .into_iter()
        .flatten();
    for (name, section) in lists {
        if let Some(list) = entries.iter_mut().find(|entry| entry.key == name) {
            list.node = node(&section);
        }
    }
    let has_hash_key = entries.iter().any(|entry| entry.key == "bearer");
    for entry in &mut entries {
        // The text of a response, rather than a function.
        if entry.key == "on_rejection" && matches!(entry.node.value, Value::Table(_)) {
            entry.key = "rejection".to_owned();
        }
    }
    if let Some(store) = store(&*core.store) {
        entries.push(entry("store", node(&store)));
    }
    let policies = core.policies.iter().map(|bound| {
        let mut settings: Vec<Entry> = set(bound.policy.settings()).collect();
        for setting in &mut settings {
            if let ("key" | "caller", Value::String(text)) =
                (&*setting.key, &mut setting.node.value)
            {
                *text = key_text(text, has_hash_key);
            }
        }
        entry(bound.policy.name(), Node::new(Value::Table(settings), None))
    });
    entries.push(entry(
        "policies",
        Node::new(Value::Table(policies.collect()), None),
    ));
    let (document, mistakes) = tree::read(Node::new(Value::Table(entries), None));
    debug_assert!(mistakes.is_empty(), "{mistakes:?}");
    document.unwrap_or_default()
}

/// The text of a key, of which a document keeps the key that tokens are hashed under elsewhere.
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

/// The settings that are no defaults.
fn set(settings: impl IntoIterator<Item = Setting>) -> impl Iterator<Item = Entry> {
    let set = settings.into_iter().filter(|setting| !setting.is_default);
    set.map(|setting| entry(setting.name, node(&setting.value)))
}

fn store(store: &dyn Store) -> Option<SettingValue> {
    let any: &dyn Any = store;
    if let Some(store) = any.downcast_ref::<MemoryStore>() {
        let max_keys = Some(store.max_keys()).filter(|keys| *keys != DEFAULT_MAX_KEYS)?;
        let max_keys = SettingValue::Number(max_keys.get() as u64);
        return Some(SettingValue::table([("max_keys", max_keys)]));
    }
    #[cfg(feature = "redis")]
    if let Some(store) = any.downcast_ref::<crate::RedisStore>() {
        return Some(store.settings().value());
    }
    Some(SettingValue::table([("url", SettingValue::text(CODE))]))
}

fn entry(key: &str, node: Node) -> Entry {
    Entry {
        key: key.to_owned(),
        key_position: None,
        node,
    }
}

fn node(value: &SettingValue) -> Node {
    let value = match value {
        SettingValue::Unset => Value::Null,
        SettingValue::Flag(flag) => Value::Bool(*flag),
        SettingValue::Number(number) => Value::Unsigned(*number),
        SettingValue::Text(text) => Value::String(text.clone().into_owned()),
        SettingValue::List(values) => Value::Array(values.iter().map(node).collect()),
        SettingValue::Table(entries) => {
            let entries = entries.iter();
            Value::Table(
                entries
                    .map(|(key, value)| entry(key, node(value)))
                    .collect(),
            )
        }
        SettingValue::Code(_) => Value::String(CODE.to_owned()),
    };
    Node::new(value, None)
}
