//! Which file defines what a path names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::modules::{Binding, Kind, Mention, ModuleId, Modules, Space};

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(ModuleId),
    Type(ModuleId, String),
    Value(ModuleId),
}

impl Target {
    fn module(&self) -> ModuleId {
        match self {
            Self::Module(module) | Self::Type(module, _) | Self::Value(module) => *module,
        }
    }
}

/// The names that are being looked up, so that imports which lead to each other end.
type Seen = BTreeSet<(ModuleId, Vec<String>)>;

/// An import of one file from another, with one path as an example.
pub(super) type Edges = BTreeMap<(PathBuf, PathBuf), String>;

/// Every dependency of one file on another.
pub(super) fn edges(modules: &Modules) -> Edges {
    let mut edges = Edges::new();
    for (id, module) in modules.all.iter().enumerate() {
        for mention in &module.mentions {
            for target in modules.follow(id, &mention.path, &mut Seen::new()) {
                let file = &modules.all[target.module()].file;
                // Naming a module is no use of it: what is used of it is mentioned on its own.
                if *file != module.file && !matches!(target, Target::Module(_)) {
                    edges
                        .entry((module.file.clone(), file.clone()))
                        .or_insert_with(|| example(mention));
                }
            }
        }
    }
    edges
}

fn example(mention: &Mention) -> String {
    let path = mention.path.join("::");
    match mention.kind {
        Kind::Code => path,
        Kind::Import => format!("use {path}"),
        Kind::Reexport => format!("pub use {path}"),
        Kind::Glob => format!("use {path}::*"),
    }
}

impl Modules {
    fn follow(&self, id: ModuleId, path: &[String], seen: &mut Seen) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else {
            return BTreeSet::new();
        };
        let start = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(0)]),
            "self" => BTreeSet::from([Target::Module(id)]),
            "super" => self.all[id]
                .parent
                .map(Target::Module)
                .into_iter()
                .collect(),
            name => self.look_up(id, name, seen),
        };
        self.walk(start, rest, seen)
    }

    fn walk(&self, start: BTreeSet<Target>, path: &[String], seen: &mut Seen) -> BTreeSet<Target> {
        let Some((first, rest)) = path.split_first() else {
            return start;
        };
        let mut found = BTreeSet::new();
        for target in start {
            match target {
                Target::Module(module) => {
                    let next = match first.as_str() {
                        "super" => {
                            let parent = self.all[module].parent;
                            parent.map(Target::Module).into_iter().collect()
                        }
                        name => self.look_up(module, name, seen),
                    };
                    found.extend(self.walk(next, rest, seen));
                }
                // What follows a type is one of its variants, functions or associated items.
                Target::Type(..) => {
                    found.insert(target);
                }
                Target::Value(_) => {}
            }
        }
        found
    }

    /// What a name means in a module, wherever it was defined.
    fn look_up(&self, id: ModuleId, name: &str, seen: &mut Seen) -> BTreeSet<Target> {
        let key = (id, vec![name.to_owned()]);
        if !seen.insert(key.clone()) {
            return BTreeSet::new();
        }
        let module = &self.all[id];
        let mut found = BTreeSet::new();
        for binding in module.names.get(name).into_iter().flatten() {
            match binding {
                Binding::Module(child) => {
                    found.insert(Target::Module(*child));
                }
                Binding::Item(Space::Type) => {
                    found.insert(Target::Type(id, name.to_owned()));
                }
                Binding::Item(Space::Value) => {
                    found.insert(Target::Value(id));
                }
                Binding::Import(path) => found.extend(self.import(id, path, name, seen)),
            }
        }
        if found.is_empty() {
            for glob in &module.globs {
                for target in self.import(id, glob, "*", seen) {
                    if let Target::Module(module) = target {
                        found.extend(self.look_up(module, name, seen));
                    }
                }
            }
        }
        seen.remove(&key);
        found
    }

    /// Follows an import, unless that is being done.
    fn import(
        &self,
        id: ModuleId,
        path: &[String],
        name: &str,
        seen: &mut Seen,
    ) -> BTreeSet<Target> {
        let mut key = path.to_vec();
        key.push(format!("as {name}"));
        let key = (id, key);
        if !seen.insert(key.clone()) {
            return BTreeSet::new();
        }
        // `use time::time` names the module beside it first, then what that holds.
        let own = (id, vec![name.to_owned()]);
        let removed = path.len() > 1 && seen.remove(&own);
        let found = self.follow(id, path, seen);
        if removed {
            seen.insert(own);
        }
        seen.remove(&key);
        found
    }
}
