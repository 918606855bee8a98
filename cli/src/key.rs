//! Keys, as arguments or from standard input.

use std::io;

use clap::Args;
use serde_json::{Value, json};
use tollgate::{Key, KeyExtractor, extract};

use crate::exit::{Failure, Outcome};

/// A key.
#[derive(Debug, Args)]
pub(crate) struct KeyText {
    /// The key: what a request has where the policy looks for it, or a key as tables show it, such as hash:7lEM2SSxGPnYHjFZP0wx. "*"
    /// is the key that all requests share.
    ///
    /// Several texts are for several parts of a key. "-" reads the texts from standard input, one from each line: the arguments
    /// of a process are visible to other users of the machine, so that is the way for an API key.
    #[arg(required_unless_present = "descriptor", value_name = "KEY")]
    key: Vec<String>,
    /// The entries of a descriptor, such as tenant=acme,route=/x, in place of the key, for the rule of a server: their values where the
    /// rule has none of its own. The key of a rule with share_threshold is "*".
    #[arg(
        long,
        value_name = "KEY=VALUE,..",
        conflicts_with = "key",
        value_delimiter = ','
    )]
    descriptor: Vec<String>,
}

impl KeyText {
    /// Whether the key is read from standard input.
    pub(crate) fn is_input(&self) -> bool {
        matches!(&*self.key, [dash] if dash == "-")
    }

    /// The key in a request.
    pub(crate) fn read(&self, policy: Option<&str>) -> Outcome<Value> {
        if !self.descriptor.is_empty() {
            let key = key_of_descriptor(policy.unwrap_or_default(), &self.descriptor)?;
            return Ok(json!(format!("key:{key}")));
        }
        let mut texts = self.key.clone();
        if self.is_input() {
            let input = io::read_to_string(io::stdin())
                .map_err(|error| Failure::unreachable("standard input", error))?;
            texts = input.lines().map(str::to_owned).collect();
        }
        if texts.is_empty() {
            return Err(Failure::Invalid("standard input has no key".to_owned()));
        }
        Ok(json_of(&texts))
    }
}

/// The key of a descriptor under a rule, as the server makes it. The rule's name says of which values: of `shop/tenant/plan=free` the
/// tenant's.
fn key_of_descriptor(policy: &str, descriptor: &[String]) -> Outcome<Key> {
    let invalid = || {
        Failure::Invalid(format!(
            "--descriptor has the entries of a rule's name, in its order; this one is {policy:?}"
        ))
    };
    let rule = policy.split('#').next().unwrap_or_default();
    let levels: Vec<&str> = rule.split('/').skip(1).collect();
    if levels.len() != descriptor.len() || rule.contains('~') {
        return Err(invalid());
    }
    let mut values = Vec::new();
    for (level, entry) in levels.into_iter().zip(descriptor) {
        let (key, value) = entry.split_once('=').ok_or_else(invalid)?;
        let (named, of_rule) = level.split_once('=').unwrap_or((level, "*"));
        if key != named {
            return Err(invalid());
        }
        if of_rule.contains('*') {
            let is_secret = is_credential(key);
            values.push(if is_secret {
                Key::secret(value)
            } else {
                Key::new(value)
            });
        }
    }
    Ok(match &values[..] {
        [] => Key::global(),
        [value] => *value,
        several => Key::tuple(several),
    })
}

/// Whether the server hashes the values of this key in descriptors, as credentials.
fn is_credential(key: &str) -> bool {
    let hashes = extract::query(key).key_from_text(&["value"]) == Some(Key::secret("value"));
    hashes && key != "generic_key"
}

/// The key that all requests share.
const ALL: &str = "*";

/// The texts of a key in a request.
pub(crate) fn json_of(texts: &[impl AsRef<str>]) -> Value {
    match texts {
        [text] if text.as_ref() == ALL => json!(format!("key:{ALL}")),
        [text] => json!(text.as_ref()),
        texts => texts.iter().map(AsRef::as_ref).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_the_key_that_the_server_makes_of_it() {
        let [tenant, route] = ["acme", "/x"].map(Key::new);
        #[rustfmt::skip]
        let rows = [
            ("shop/tenant", "tenant=acme", Some(tenant)),
            ("shop/tenant/route", "tenant=acme,route=/x", Some(Key::tuple([tenant, route]))),
            ("shop/plan=free/tenant#burst", "plan=free,tenant=acme", Some(tenant)),
            ("shop/plan=free", "plan=free", Some(Key::global())),
            ("shop/tenant=trial%3D*", "tenant=trial=9", Some(Key::new("trial=9"))),
            ("shop/tenant", "tenant=*", Some(Key::new("*"))),
            // No credential is stored as it is.
            ("shop/api_key", "api_key=sk_1", Some(Key::secret("sk_1"))),
            ("shop/tenant/api_key", "tenant=acme,api_key=sk_1", Some(Key::tuple([tenant, Key::secret("sk_1")]))),
            ("shop/generic_key", "generic_key=acme", Some(tenant)),
            ("shop/tenant/route", "route=/x,tenant=acme", None),
            ("shop/tenant/route", "tenant=acme", None),
            ("shop/tenant", "tenant", None),
            ("shop/a_name_that_is_too_lo~0123", "a_name_that_is_too_long=1", None),
        ];
        for (policy, descriptor, expected) in rows {
            let entries: Vec<String> = descriptor.split(',').map(str::to_owned).collect();
            let key = key_of_descriptor(policy, &entries).ok();
            assert_eq!(key, expected, "{policy} {descriptor}");
        }
    }
}
