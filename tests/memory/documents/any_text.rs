//! No text makes the parser of documents panic.

use proptest::prelude::*;

use crate::documents::{inputs::a_document_is_read_or_rejected, support::*};

fn shipped() -> Vec<String> {
    let folder = tollgate_tests::repository("examples/configured");
    let files = ["limits.toml", "limits.yaml"].map(|name| folder.join(name));
    files
        .map(|file| fs::read_to_string(file).expect("a file"))
        .into()
}

/// A shipped document with a part that is replaced by another text.
fn damaged() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[\\PC]{0,8}",
        "[ \\n\\t\\[\\]{}\"'=:,.#$*&|>-]{0,6}",
        Just("policies".to_owned()),
        Just("[[policies.api]]\n".to_owned()),
        Just("key = [\"peer\", [\"path\"]]\n".to_owned()),
    ];
    let index = any::<prop::sample::Index>;
    (index(), index(), 0_usize..40, part).prop_map(|(which, at, length, part)| {
        let shipped = shipped();
        let text: Vec<char> = which.get(&shipped).chars().collect();
        let at = at.index(text.len());
        let end = text.len().min(at + length);
        let (before, after) = (text[..at].iter(), text[end..].iter());
        before.collect::<String>() + &part + &after.collect::<String>()
    })
}

proptest! {
    #[test]
    fn any_text_is_a_document_or_an_error(text in "\\PC{0,200}") {
        a_document_is_read_or_rejected(&text);
    }

    #[test]
    fn a_damaged_document_is_a_document_or_an_error(text in damaged()) {
        a_document_is_read_or_rejected(&text);
    }
}
