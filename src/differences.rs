//! The names of settings that differ.

/// The names of the settings that differ between two configurations.
pub(crate) fn different<const N: usize>(settings: [(&'static str, bool); N]) -> Vec<&'static str> {
    let settings = settings.into_iter();
    let different = settings.filter_map(|(name, differs)| differs.then_some(name));
    different.collect()
}
