//! Keys, as arguments or from standard input.

use std::io;

use clap::Args;
use serde_json::{Value, json};

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
    /// rule has none of its own.
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
        let mut texts = self.key.clone();
        if !self.descriptor.is_empty() {
            texts = self.of_descriptor(policy.unwrap_or_default())?;
        }
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

    /// The texts of a descriptor's values that the key of a rule has. The rule's name says which: of `shop/tenant/plan=free` the tenant's.
    fn of_descriptor(&self, policy: &str) -> Outcome<Vec<String>> {
        let invalid = || {
            Failure::Invalid(format!(
                "--descriptor has the entries of a rule's name, in its order; this one is {policy:?}"
            ))
        };
        let rule = policy.split('#').next().unwrap_or_default();
        let levels: Vec<&str> = rule.split('/').skip(1).collect();
        if levels.len() != self.descriptor.len() || rule.contains('~') {
            return Err(invalid());
        }
        let mut texts = Vec::new();
        for (level, entry) in levels.into_iter().zip(&self.descriptor) {
            let (key, value) = entry.split_once('=').ok_or_else(invalid)?;
            let (named, of_rule) = level.split_once('=').unwrap_or((level, "*"));
            if key != named {
                return Err(invalid());
            }
            if of_rule.contains('*') {
                texts.push(value.to_owned());
            }
        }
        if texts.is_empty() {
            texts.push(ALL.to_owned());
        }
        Ok(texts)
    }
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
