//! Configuration files, read without the application that they are for.

use std::path::Path;

use clap::Args;
use tollgate::{
    Gcra, KeyExtractor,
    config::{BearerSection, Document, LoadError, Mistake, Reference, Registry, StoreDocument},
    extract,
};

use crate::{
    exit::{Failure, Outcome},
    output::print_error,
};

/// What to do about code that the application registers, and this program doesn't have.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Code {
    /// Take every name of a key, cost, tier or other code that is not built in for one that the application registers.
    #[arg(long)]
    pub(crate) assume_registered: bool,
}

/// A document that can be built, without its store.
#[derive(Debug)]
pub(crate) struct InProcess {
    /// The document, of which nothing is stored on Redis, and no secret is needed.
    pub(crate) document: Document,
    /// Placeholders of the code that the document names: a key that no request has, a cost of 1, no tier, GCRA as strategy.
    pub(crate) registry: Registry,
    /// The names of code that have placeholders, without those of documents that were read before.
    pub(crate) assumed: Vec<Mistake>,
    /// The store, which was left out.
    pub(crate) store: Option<StoreDocument>,
    /// How bearer tokens are hashed, which was left out.
    pub(crate) bearer: Option<BearerSection>,
}

impl InProcess {
    /// Reads a document that counts in process, whatever its store is.
    pub(crate) fn load(path: &Path, code: Code) -> Outcome<Self> {
        Self::load_by(&mut Reader::default(), path, code)
    }

    /// Reads one of several documents, in which the same name is the same code.
    pub(crate) fn load_by(reader: &mut Reader, path: &Path, code: Code) -> Outcome<Self> {
        let mut left_out = (None, None);
        let known = reader.assumed.len();
        let document = reader
            .read(path, code, |document| {
                left_out = (document.store.take(), document.bearer.take());
            })
            .map_err(|error| invalid(&error))?;
        let (store, bearer) = left_out;
        Ok(Self {
            document,
            registry: reader.registry.clone(),
            assumed: reader.assumed.split_off(known),
            store,
            bearer,
        })
    }

    /// Writes to standard error which code has placeholders.
    pub(crate) fn report_assumed(&self, path: &Path) {
        for mistake in &self.assumed {
            if let Some(Reference::Code { kind, name }) = mistake.unresolved() {
                let (path, at) = (path.display(), mistake.path());
                print_error(&format!(
                    "note: {path}: {at}: assumed that the application registers the {kind} {name:?}"
                ));
            }
        }
    }
}

/// Reads documents, and keeps placeholders of the code that they name.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) registry: Registry,
    /// The names of code that have placeholders.
    pub(crate) assumed: Vec<Mistake>,
}

impl Reader {
    /// Reads and checks a document, which `change` may change first.
    pub(crate) fn read(
        &mut self,
        path: &Path,
        code: Code,
        mut change: impl FnMut(&mut Document),
    ) -> Result<Document, LoadError> {
        loop {
            let document = Document::load(path);
            let built = document.and_then(|mut document| {
                change(&mut document);
                document.layer(&self.registry)?;
                Ok(document)
            });
            match built {
                Err(error) if code.assume_registered && self.assume(&error) => {}
                built => return built,
            }
        }
    }

    /// Registers placeholders of the code that was not found. Returns whether there is any.
    fn assume(&mut self, error: &LoadError) -> bool {
        let before = self.assumed.len();
        for mistake in error.mistakes() {
            let Some(reference @ Reference::Code { kind, name }) = mistake.unresolved() else {
                continue;
            };
            let is_same = |known: &Mistake| known.unresolved() == Some(reference);
            if self.assumed.iter().any(is_same) {
                continue;
            }
            let registry = std::mem::take(&mut self.registry);
            match with_placeholder(registry.clone(), kind, name.clone()) {
                Some(registry) => {
                    self.registry = registry;
                    self.assumed.push(mistake.clone());
                }
                None => self.registry = registry,
            }
        }
        self.assumed.len() > before
    }
}

/// The registry with a placeholder; `None` for a kind of code that this program doesn't know.
fn with_placeholder(registry: Registry, kind: &str, name: String) -> Option<Registry> {
    Some(match kind {
        "key" => registry.key(name, no_key()),
        "strategy" => registry.strategy(name, Gcra),
        "cost" => registry.cost(name, |_| 1),
        "tier" => registry.tier(name, |_| None::<String>),
        "outcome" => registry.outcome(name, |_| true),
        "condition" => registry.condition(name, |_| false),
        "quota" => registry.quota(name, |_| None),
        "on_rejection" => registry.on_rejection(name, |rejected, _| {
            let mut response = http::Response::new(String::new());
            *response.status_mut() = rejected.status();
            response
        }),
        _ => return None,
    })
}

/// An extractor that finds no key.
fn no_key() -> impl KeyExtractor {
    extract::from_fn(|_| None)
}

/// The failure of a command that needs a document without mistakes.
pub(crate) fn invalid(error: &LoadError) -> Failure {
    Failure::Invalid(if error.mistakes().iter().any(is_code) {
        format!("{error}\n{HINT}")
    } else {
        error.to_string()
    })
}

/// How to check a document that names code.
pub(crate) const HINT: &str = "hint: --assume-registered takes names that are not built in for code that the application registers";

/// Whether it is the name of code that only the application has.
pub(crate) fn is_code(mistake: &Mistake) -> bool {
    matches!(mistake.unresolved(), Some(Reference::Code { .. }))
}

/// Whether it is a secret that is not there.
pub(crate) fn is_secret(mistake: &Mistake) -> bool {
    mistake.unresolved().is_some() && !is_code(mistake)
}
