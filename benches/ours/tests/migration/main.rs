//! The programs of other crates in the guide to migration are these, which compile.

mod governor_limiter;
mod tower_governor_app;

const GUIDE: &str = include_str!("../../../../docs/guide/migration.md");

#[test]
fn the_guide_to_migration_prints_the_programs_that_it_replaces() {
    for program in [
        include_str!("governor_limiter.rs"),
        include_str!("tower_governor_app.rs"),
    ] {
        assert!(
            GUIDE.contains(&format!("```text\n{program}```")),
            "{program}"
        );
    }
}

#[tokio::test]
async fn the_programs_of_other_crates_admit_their_bursts() {
    let limiter = governor_limiter::limiter();
    assert!((0..100).all(|_| governor_limiter::is_admitted(&limiter, "alice")));
    let _: axum::Router = tower_governor_app::app();
}
