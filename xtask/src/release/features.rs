//! Features of the library, alone and in pairs.

use std::path::Path;

use super::skipped::Skipped;
use crate::run::Outcome;
use crate::test;

/// The features that change most of the code.
const MAIN: [&str; 6] = ["admin", "axum", "config", "metrics", "redis", "tonic"];

pub(super) fn alone(root: &Path, _: &mut Skipped) -> Outcome {
    for feature in test::feature_names(root)? {
        println!("    {feature}");
        test::bare_clippy(root, &["--features", &feature])?;
    }
    Ok(())
}

pub(super) fn pairs(root: &Path, _: &mut Skipped) -> Outcome {
    for pair in pairs_of(&MAIN) {
        println!("    {pair}");
        test::bare_clippy(root, &["--features", &pair])?;
    }
    Ok(())
}

fn pairs_of(features: &[&str]) -> Vec<String> {
    let mut pairs = Vec::new();
    for (index, first) in features.iter().enumerate() {
        let others = &features[index + 1..];
        pairs.extend(others.iter().map(|second| format!("{first},{second}")));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_listed_once() {
        assert_eq!(pairs_of(&["a", "b", "c"]), ["a,b", "a,c", "b,c"]);
    }

    #[test]
    fn the_main_features_exist() {
        let root = crate::root().expect("the root");
        let features = test::feature_names(&root).expect("features");
        for feature in MAIN {
            assert!(features.iter().any(|name| name == feature), "{feature}");
        }
    }
}
