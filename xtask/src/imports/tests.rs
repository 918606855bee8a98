//! Small crates, each with one form of import.

use std::fs;
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

/// The folder `a` depends on `b` by what is given, and `b` on `a` by an import.
fn depends(code: &str) -> bool {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", &format!("{code}\npub struct A;")),
        (
            "b/mod.rs",
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
    assert!(found.is_empty() || found == ["a/ b/"], "{found:?}");
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
        ("lib.rs", "mod a; mod b; pub use b::Third as Fourth;"),
        ("a/mod.rs", "use crate::Fourth; pub struct A(Fourth);"),
        ("b/mod.rs", "mod c; pub use self::c::Second as Third;"),
        ("b/c/mod.rs", "pub use d::First as Second; mod d;"),
        ("b/c/d.rs", "pub struct First(Option<Box<crate::a::A>>);"),
    ]);
    assert_eq!(found, ["a/ b/"]);
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
fn files_of_one_folder_and_a_folder_and_its_children_may_use_each_other() {
    let found = cycles(&[
        ("lib.rs", "mod a; pub struct Root(a::Parent);"),
        (
            "a/mod.rs",
            "mod b; mod c; mod d; pub struct Parent(b::B, d::D);",
        ),
        ("a/b.rs", "pub struct B(super::c::C, crate::Root);"),
        ("a/c.rs", "pub struct C(Box<super::b::B>);"),
        ("a/d/mod.rs", "pub struct D(Box<super::Parent>);"),
    ]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_folder_and_a_file_beside_it_that_use_each_other_are_a_cycle() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod one; pub mod two;"),
        ("a/one.rs", "use crate::b::B;"),
        ("a/two.rs", "pub struct Two;"),
        ("b.rs", "use crate::a::two::Two; pub struct B;"),
    ]);
    assert_eq!(found, ["a/ b.rs"]);
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
fn a_long_cycle_names_every_folder_and_an_import_of_each() {
    let source = Crate::new(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a/mod.rs", "use crate::b::B; pub struct A;"),
        ("b/mod.rs", "use crate::c::C; pub struct B;"),
        ("c/mod.rs", "pub struct C(crate::a::A);"),
        ("d/mod.rs", "use crate::a::A;"),
    ]);
    let found = find(&source.0, "lib.rs", "src/").expect("sources that parse");
    assert_eq!(found.len(), 1);
    assert_eq!(
        show(&found[0]),
        "import cycle of 3: src/a/ src/b/ src/c/\n    \
         src/a/ -> src/b/    a/mod.rs: use crate::b::B\n    \
         src/b/ -> src/c/    b/mod.rs: use crate::c::C\n    \
         src/c/ -> src/a/    c/mod.rs: crate::a::A\n"
    );
}
