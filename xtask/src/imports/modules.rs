//! The module tree of a crate: what each module defines, imports and mentions.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::conditions::{attributes, excluded};
use crate::run::Outcome;

pub(super) type ModuleId = usize;

/// What a name means in a module.
#[derive(Clone, Debug)]
pub(super) enum Binding {
    Module(ModuleId),
    Item(Space),
    Import(Vec<String>),
}

/// The namespace of an item; only a type can be followed by more of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Type,
    Value,
}

#[derive(Debug)]
pub(super) struct Module {
    pub(super) parent: Option<ModuleId>,
    /// Relative to the folder of the crate.
    pub(super) file: PathBuf,
    pub(super) names: HashMap<String, Vec<Binding>>,
    pub(super) globs: Vec<Vec<String>>,
    /// Everything of another module that this one may depend on.
    pub(super) mentions: Vec<Mention>,
}

/// A path in the code of a module.
#[derive(Debug)]
pub(super) struct Mention {
    pub(super) path: Vec<String>,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Import,
    Reexport,
    Glob,
    Code,
}

#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) all: Vec<Module>,
}

impl Modules {
    /// Reads the crate whose root file is `root`, a path in `folder`.
    pub(super) fn read(folder: &Path, root: &str) -> Outcome<Self> {
        let mut modules = Self::default();
        modules.read_file(folder, PathBuf::from(root), PathBuf::new(), None)?;
        Ok(modules)
    }

    /// Reads a module's file; `children` is the folder of its child modules.
    fn read_file(
        &mut self,
        folder: &Path,
        file: PathBuf,
        children: PathBuf,
        parent: Option<ModuleId>,
    ) -> Outcome<ModuleId> {
        let path = folder.join(&file);
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        let parsed = syn::parse_file(&text).map_err(|error| failed(&error))?;
        let id = self.add(file, parent);
        self.read_items(folder, &children, id, &parsed.items)?;
        Ok(id)
    }

    fn add(&mut self, file: PathBuf, parent: Option<ModuleId>) -> ModuleId {
        self.all.push(Module {
            parent,
            file,
            names: HashMap::new(),
            globs: Vec::new(),
            mentions: Vec::new(),
        });
        self.all.len() - 1
    }

    fn read_items(
        &mut self,
        folder: &Path,
        children: &Path,
        id: ModuleId,
        items: &[syn::Item],
    ) -> Outcome {
        for item in items {
            if excluded(attributes(item)) {
                continue;
            }
            if let syn::Item::Mod(item) = item {
                let name = item.ident.to_string();
                let inner = children.join(&name);
                let child = if let Some((_, items)) = &item.content {
                    let child = self.add(self.all[id].file.clone(), Some(id));
                    self.read_items(folder, &inner, child, items)?;
                    child
                } else {
                    let flat = inner.with_extension("rs");
                    let nested = inner.join("mod.rs");
                    let file = if folder.join(&flat).exists() {
                        flat
                    } else {
                        nested
                    };
                    self.read_file(folder, file, inner, Some(id))?
                };
                self.all[id].bind(name, Binding::Module(child));
            } else if let Some(items) = items_in_macro(item) {
                self.read_items(folder, children, id, &items)?;
            } else {
                self.all[id].define(item);
                Reader {
                    module: &mut self.all[id],
                    locals: Vec::new(),
                }
                .visit_item(item);
            }
        }
        Ok(())
    }
}

impl Module {
    fn bind(&mut self, name: String, binding: Binding) {
        self.names.entry(name).or_default().push(binding);
    }

    fn define(&mut self, item: &syn::Item) {
        let (name, space) = match item {
            syn::Item::Const(item) => (&item.ident, Space::Value),
            syn::Item::Enum(item) => (&item.ident, Space::Type),
            syn::Item::Fn(item) => (&item.sig.ident, Space::Value),
            syn::Item::Macro(item) => match &item.ident {
                Some(name) => (name, Space::Value),
                None => return,
            },
            syn::Item::Static(item) => (&item.ident, Space::Value),
            syn::Item::Struct(item) => (&item.ident, Space::Type),
            syn::Item::Trait(item) => (&item.ident, Space::Type),
            syn::Item::Type(item) => (&item.ident, Space::Type),
            syn::Item::Union(item) => (&item.ident, Space::Type),
            _ => return,
        };
        self.bind(name.to_string(), Binding::Item(space));
    }

    fn import(&mut self, tree: &syn::UseTree, prefix: &[String], public: bool) {
        let with = |name: &syn::Ident| {
            let mut path = prefix.to_vec();
            path.push(name.to_string());
            path
        };
        let kind = if public { Kind::Reexport } else { Kind::Import };
        match tree {
            syn::UseTree::Path(tree) => self.import(&tree.tree, &with(&tree.ident), public),
            syn::UseTree::Group(tree) => {
                for tree in &tree.items {
                    self.import(tree, prefix, public);
                }
            }
            syn::UseTree::Name(tree) => {
                let mut path = with(&tree.ident);
                if tree.ident == "self" {
                    path.pop();
                }
                if let Some(name) = path.last().cloned() {
                    self.bind(name, Binding::Import(path.clone()));
                    self.mentions.push(Mention { path, kind });
                }
            }
            syn::UseTree::Rename(tree) => {
                let mut path = with(&tree.ident);
                if tree.ident == "self" && path.len() > 1 {
                    path.pop();
                }
                self.bind(tree.rename.to_string(), Binding::Import(path.clone()));
                self.mentions.push(Mention { path, kind });
            }
            syn::UseTree::Glob(_) => {
                let path = prefix.to_vec();
                self.globs.push(path.clone());
                if !public {
                    let kind = Kind::Glob;
                    self.mentions.push(Mention { path, kind });
                }
            }
        }
    }
}

/// Collects what the code of one item mentions.
struct Reader<'a> {
    module: &'a mut Module,
    /// The variables of the functions that are being read, which hide items of the same name.
    locals: Vec<BTreeSet<String>>,
}

impl Reader<'_> {
    fn mention(&mut self, path: Vec<String>) {
        let kind = Kind::Code;
        self.module.mentions.push(Mention { path, kind });
    }

    fn in_function<'ast>(&mut self, locals: BTreeSet<String>, read: impl FnOnce(&mut Self) + 'ast) {
        self.locals.push(locals);
        read(self);
        self.locals.pop();
    }

    /// Macros' arguments have no grammar: whatever looks like a path is one.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut field = false;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_of_path(&mut path);
                    }
                    if !field {
                        path.push(name.to_string());
                    }
                    colons = 0;
                    field = false;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    field = false;
                }
                other => {
                    self.end_of_path(&mut path);
                    colons = 0;
                    field = matches!(&other, TokenTree::Punct(mark) if mark.as_char() == '.');
                    if let TokenTree::Group(group) = other {
                        self.read_tokens(group.stream());
                    }
                }
            }
        }
        self.end_of_path(&mut path);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        let is_type = |name: &String| name.starts_with(|first: char| first.is_uppercase());
        if path.len() > 1 || path.first().is_some_and(is_type) {
            self.mention(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !excluded(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !excluded(&item.attrs) {
            let locals = Locals::of(|locals| locals.visit_impl_item_fn(item));
            self.in_function(locals, |this| visit::visit_impl_item_fn(this, item));
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let locals = Locals::of(|locals| locals.visit_item_fn(item));
        self.in_function(locals, |this| visit::visit_item_fn(this, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let locals = Locals::of(|locals| locals.visit_trait_item_fn(item));
        self.in_function(locals, |this| visit::visit_trait_item_fn(this, item));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !excluded(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !excluded(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A leading `::` names another crate.
        if item.leading_colon.is_none() {
            let public = !matches!(item.vis, syn::Visibility::Inherited);
            self.module.import(&item.tree, &[], public);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names: Vec<String> = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string())
                .collect();
            let local = matches!(&names[..], [name] if self.locals.iter().any(|locals| locals.contains(name)));
            if !local {
                self.mention(names);
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        self.visit_path(&invoked.path);
        self.read_tokens(invoked.tokens.clone());
    }

    /// Attributes hold documentation and conditions, no code.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}

/// The variables that a function binds.
#[derive(Default)]
struct Locals(BTreeSet<String>);

impl Locals {
    fn of(visit: impl FnOnce(&mut Self)) -> BTreeSet<String> {
        let mut locals = Self::default();
        visit(&mut locals);
        locals.0
    }
}

impl<'ast> Visit<'ast> for Locals {
    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        let name = pattern.ident.to_string();
        // Otherwise it is rather a constant or a variant.
        if name.starts_with(|first: char| first.is_lowercase() || first == '_') {
            self.0.insert(name);
        }
        visit::visit_pat_ident(self, pattern);
    }
}

/// The items inside of a macro's braces, as in `pin_project! { struct … }`.
fn items_in_macro(item: &syn::Item) -> Option<Vec<syn::Item>> {
    let syn::Item::Macro(item) = item else {
        return None;
    };
    // A `macro_rules!` has a name, and its tokens are patterns.
    if item.ident.is_some() {
        return None;
    }
    let file: syn::File = syn::parse2(item.mac.tokens.clone()).ok()?;
    Some(file.items)
}
