//! Small crates, each with one form of import.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A crate in a folder of its own, which goes with it.
struct Crate(PathBuf);

impl Crate {
    /// The first file is the root, `lib.rs`.
    fn new(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);

        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-imports-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for (file, text) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
            fs::write(path, text).expect("a new file");
        }
        Self(folder)
    }
}

impl Drop for Crate {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let source = Crate::new(files);
    let found = find(&source.0, "lib.rs", "").expect("sources that parse");
    found.iter().map(|cycle| names(&cycle.members)).collect()
}

/// `a.rs` depends on `b.rs` by what is given, and `b.rs` on `a.rs` by an import.
fn depends(code: &str) -> bool {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", &format!("{code}\npub struct A;")),
        (
            "b.rs",
            "use crate::a::A;
            pub struct B;
            pub enum E { One }
            pub trait T { fn act(&self) {} }
            pub fn f() -> A { A }
            pub const LIMIT: u32 = 1;
            macro_rules! m { () => {} }
            pub(crate) use m;",
        ),
    ]);
    assert!(found.is_empty() || found == ["a.rs b.rs"], "{found:?}");
    !found.is_empty()
}

#[test]
fn every_form_of_import_counts() {
    for import in [
        "use crate::b::B;",
        "use super::b::B;",
        "use self::super::b::B;",
        "use crate::{b::{B as Other}};",
        "use crate::b::{self, f};",
        "use super::{b::{f, *}};",
        "use crate::b::E::*;",
        "use crate::b::T as _;",
        "#[cfg(feature = \"x\")] use crate::b::B;",
        "#[cfg(not(test))] use crate::b::B;",
        "#[cfg(any(test, feature = \"x\"))] use crate::b::B;",
        "pub use crate::b::B;",
        "fn g() { use crate::b::B; }",
        "mod inner { use super::super::b::B; }",
        "use crate::b as other; use other::B;",
    ] {
        assert!(depends(import), "{import}");
    }
}

#[test]
fn every_form_of_path_counts() {
    for code in [
        "struct S(crate::b::B);",
        "fn g(_: super::b::E) {}",
        "fn g() { super::b::f(); }",
        "fn g() -> u32 { crate::b::LIMIT }",
        "fn g() { let _ = crate::b::E::One; }",
        "fn g(e: u8) { match e { crate::b::LIMIT => {} _ => {} } }",
        "impl crate::b::T for A {}",
        "fn g<S: super::b::T>() {}",
        "fn g() { <A as crate::b::T>::act(&A); }",
        "fn g() { println!(\"{}\", crate::b::LIMIT); }",
        "fn g() { assert!(vec![super::b::f()].is_empty()); }",
        "fn g() { crate::b::m!(); }",
        "use crate::b; fn g() { b::f(); }",
        "use super::b as other; fn g() { other::f(); }",
        "use crate::b::*; fn g() { f(); }",
        "use crate::b::*; struct S { e: E }",
        "use super::*; fn g() { b::f(); }",
        "macro_rules! made { () => { $crate::b::f() }; }",
        "wrapped! { struct S { field: crate::b::B } }",
        "wrapped! { use crate::b::B; }",
    ] {
        assert!(depends(code), "{code}");
    }
}

#[test]
fn what_is_not_a_use_does_not_count() {
    for code in [
        "",
        "use crate::b;",
        "use crate::b::{self as other};",
        "use crate::b::*;",
        "use b::B;",
        "use ::b::B;",
        "/// See [`crate::b::B`].\nstruct S;",
        "// crate::b::B\n",
        "fn g() { let _ = \"crate::b::B\"; }",
        "#[cfg(test)] use crate::b::B;",
        "#[cfg(all(test, feature = \"x\"))] use crate::b::B;",
        "#[cfg(any(test, fuzzing))] mod tests { use crate::b::B; }",
        "#[cfg(test)] mod tests { use super::super::b::B; }",
        "#[cfg(test)] fn g() { crate::b::f(); }",
        "impl A { #[cfg(test)] fn g() { crate::b::f(); } }",
        "fn g(b: A) { b.f(); }",
        "pub(in crate::b) fn g() {}",
        "#[made(crate::b::B)] struct S;",
        "use crate::b::*; fn g(f: A) { drop(f); }",
        "use crate::b::*; fn g() { println!(\"{}\", x.B); }",
    ] {
        assert!(!depends(code), "{code}");
    }
}

#[test]
fn a_cycle_behind_a_reexport_is_found() {
    let found = cycles(&[
        ("lib.rs", "mod strategy;"),
        (
            "strategy/mod.rs",
            "mod memory; mod table; pub use memory::State; pub use table::*;",
        ),
        (
            "strategy/memory.rs",
            "use crate::strategy::Table; pub struct State(Table);",
        ),
        (
            "strategy/table.rs",
            "use super::State; pub struct Table(Box<State>);",
        ),
    ]);
    assert_eq!(found, ["strategy/memory.rs strategy/table.rs"]);
}

#[test]
fn a_reexport_of_a_reexport_under_another_name_leads_to_the_definition() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; pub use b::Third as Fourth;"),
        ("a.rs", "use crate::Fourth; pub struct A(Fourth);"),
        ("b/mod.rs", "mod c; pub use self::c::Second as Third;"),
        ("b/c.rs", "pub use d::First as Second; mod d;"),
        ("b/c/d.rs", "pub struct First(Option<Box<crate::a::A>>);"),
    ]);
    assert_eq!(found, ["a.rs b/c/d.rs", "a.rs b/"]);
}

#[test]
fn an_item_and_a_module_of_one_name_are_kept_apart() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "use crate::b::time; pub struct A; fn g() { time(); }",
        ),
        ("b/mod.rs", "mod time; pub use time::time; use crate::a::A;"),
        ("b/time.rs", "pub fn time() {}"),
    ]);
    assert_eq!(found, ["a.rs b/"]);
}

#[test]
fn a_parent_and_a_child_that_use_each_other_are_a_cycle() {
    let child = ("a/child.rs", "use super::Parent; pub struct Child(Parent);");
    for parent in [
        "mod child; use child::Child; pub struct Parent;",
        "mod child; pub use child::Child; pub struct Parent; fn f(_: Child) {}",
        "mod child; pub struct Parent; fn f(_: child::Child) {}",
    ] {
        let found = cycles(&[("lib.rs", "mod a;"), ("a/mod.rs", parent), child]);
        assert_eq!(found, ["a/child.rs a/mod.rs"], "{parent}");
    }
    for parent in [
        "mod child; pub struct Parent;",
        "pub mod child; pub use child::Child; pub struct Parent;",
        "mod child; pub(crate) use child::*; pub struct Parent;",
    ] {
        let found = cycles(&[("lib.rs", "mod a;"), ("a/mod.rs", parent), child]);
        assert!(found.is_empty(), "{parent}");
    }
}

#[test]
fn a_parent_that_calls_a_method_of_a_childs_trait_depends_on_it() {
    let child = (
        "a/child.rs",
        "use super::Parent; pub trait Act { fn act(&self); }",
    );
    let parent = "mod child; pub use child::Act; pub struct Parent;";
    let calling = format!("{parent} fn f(parent: &Parent) {{ parent.act(); }}");
    let found = cycles(&[("lib.rs", "mod a;"), ("a/mod.rs", &calling), child]);
    assert_eq!(found, ["a/child.rs a/mod.rs"]);
    let found = cycles(&[("lib.rs", "mod a;"), ("a/mod.rs", parent), child]);
    assert!(found.is_empty());
}

#[test]
fn folders_that_use_each_other_are_a_cycle_though_their_files_are_none() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod one; pub mod two;"),
        ("a/one.rs", "use crate::b::three::Three;"),
        ("a/two.rs", "pub struct Two;"),
        ("b/mod.rs", "pub mod three; mod four;"),
        ("b/three.rs", "pub struct Three;"),
        ("b/four.rs", "use crate::a::two::Two;"),
    ]);
    assert_eq!(found, ["a/ b/"]);
}

#[test]
fn a_long_cycle_names_every_file_and_an_import_of_each() {
    let source = Crate::new(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "pub struct C(crate::a::A);"),
        ("d.rs", "use crate::a::A;"),
    ]);
    let found = find(&source.0, "lib.rs", "src/").expect("sources that parse");
    assert_eq!(found.len(), 1);
    assert_eq!(
        show(&found[0]),
        "import cycle of 3: src/a.rs src/b.rs src/c.rs\n    \
         src/a.rs -> src/b.rs    use crate::b::B\n    \
         src/b.rs -> src/c.rs    use crate::c::C\n    \
         src/c.rs -> src/a.rs    crate::a::A\n"
    );
}

fn cycle(members: &str) -> Cycle {
    Cycle {
        members: members.split(' ').map(str::to_owned).collect(),
        edges: Default::default(),
    }
}

#[test]
fn the_list_of_known_cycles_only_shrinks() {
    let known = parse("# why\n\na\nb\nc\n\nd\ne\n");
    assert_eq!(known.len(), 2);
    let check = |found: &[&str]| {
        let found: Vec<Cycle> = found.iter().map(|members| cycle(members)).collect();
        compare(&known, &found).err().unwrap_or_default()
    };
    assert_eq!(check(&["a b c", "d e"]), "");
    assert_eq!(check(&["a b c", "d e", "f g"]), "a new import cycle: f, g");
    assert!(check(&["a b c f", "d e"]).contains("added to a known import cycle: f"));
    assert!(check(&["a b c d e"]).contains("have become one"));
    assert!(check(&["a b c"]).contains("gone; take it off the list: d e"));
    assert!(check(&["a b", "d e"]).contains("smaller now (a b c); what is left: a b"));
}
