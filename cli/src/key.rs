//! Keys, as arguments or from standard input.

use std::io;

use clap::Args;
use serde_json::{Value, json};

use crate::exit::{Failure, Outcome};

/// A key.
#[derive(Debug, Args)]
pub(crate) struct KeyText {
    /// The key: what a request has where the policy looks for it, or a key as tables show it, such as hash:7lEM2SSxGPnYHjFZP0wx.
    ///
    /// Several texts are for several parts of a key. "-" reads the texts from standard input, one from each line: the arguments
    /// of a process are visible to other users of the machine, so that is the way for an API key.
    #[arg(required = true, value_name = "KEY")]
    key: Vec<String>,
}

impl KeyText {
    /// Whether the key is read from standard input.
    pub(crate) fn is_input(&self) -> bool {
        matches!(&*self.key, [dash] if dash == "-")
    }

    /// The key in a request.
    pub(crate) fn read(&self) -> Outcome<Value> {
        let mut texts = self.key.clone();
        if self.is_input() {
            let input = io::read_to_string(io::stdin())
                .map_err(|error| Failure::unreachable("standard input", error))?;
            texts = input.lines().map(str::to_owned).collect();
        }
        Ok(match &*texts {
            [] => return Err(Failure::Invalid("standard input has no key".to_owned())),
            [text] => json!(text),
            texts => json!(texts),
        })
    }
}
