//! Which items are compiled for tests alone.

pub(super) fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item is compiled for tests alone.
pub(super) fn excluded(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args()
                .is_ok_and(|condition| holds(&condition) == Some(false))
    })
}

/// Whether a condition holds in a build that is neither a test nor a fuzz target; `None` where
/// that depends on features.
fn holds(condition: &syn::Meta) -> Option<bool> {
    const TESTS: [&str; 4] = ["test", "doctest", "fuzzing", "loom"];

    let syn::Meta::List(list) = condition else {
        let name = condition.path().get_ident()?.to_string();
        return TESTS.contains(&name.as_str()).then_some(false);
    };
    let parts = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
    let parts = list.parse_args_with(parts).ok()?;
    let parts: Vec<Option<bool>> = parts.iter().map(holds).collect();
    let all = |value| parts.iter().all(|part| *part == Some(value));
    if list.path.is_ident("not") {
        parts.first()?.map(|part| !part)
    } else if list.path.is_ident("any") {
        let known = parts.contains(&Some(true)).then_some(true);
        known.or_else(|| all(false).then_some(false))
    } else {
        let known = parts.contains(&Some(false)).then_some(false);
        known.or_else(|| all(true).then_some(true))
    }
}
