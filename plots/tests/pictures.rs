//! The pictures of the documentation are what the code draws, and show what the code did.

use std::{collections::HashMap, fs, path::PathBuf};

use tollgate_plots::{FOLDER, Picture, Result, batch, cache, differing, draw, edge, outage, write};

fn root() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), ".."].iter().collect()
}

#[tokio::test]
async fn the_pictures_of_the_documentation_are_what_the_code_draws() -> Result<()> {
    let stale = differing(&draw().await?, &root().join(FOLDER))?;
    assert!(
        stale.is_empty(),
        "{FOLDER} has other pictures than the code draws: {stale:?}; \
         run `cargo xtask plots`, look at them, and commit them"
    );
    Ok(())
}

#[test]
fn a_changed_byte_and_a_missing_file_are_found_and_written_anew() -> Result<()> {
    let folder = testkit::folder();
    let picture = |file: &str| Picture {
        file: file.to_owned(),
        svg: format!("<svg><title>{file}</title></svg>\n"),
    };
    let pictures = ["a.svg", "b.svg", "c.svg"].map(picture);
    assert_eq!(write(&pictures, folder.path())?.len(), 3);
    assert!(differing(&pictures, folder.path())?.is_empty());

    let mut bytes = fs::read(folder.path().join("b.svg"))?;
    bytes[5] ^= 1;
    fs::write(folder.path().join("b.svg"), bytes)?;
    fs::remove_file(folder.path().join("c.svg"))?;
    assert_eq!(differing(&pictures, folder.path())?, ["b.svg", "c.svg"]);
    assert_eq!(write(&pictures, folder.path())?, ["b.svg", "c.svg"]);
    assert!(differing(&pictures, folder.path())?.is_empty());
    Ok(())
}

/// Documentation includes them as HTML, which ends at an empty line.
#[test]
fn a_picture_has_a_description_and_needs_nothing_but_itself() -> Result<()> {
    let mut pictures = 0;
    for entry in fs::read_dir(root().join(FOLDER))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.ends_with("-light.svg") && !name.ends_with("-dark.svg") {
            continue;
        }
        let svg = fs::read_to_string(&path)?;
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{name}"
        );
        assert!(
            svg.lines()
                .next()
                .is_some_and(|line| line.contains("role=\"img\""))
        );
        assert!(svg.contains("<title>") && svg.contains("<desc>"), "{name}");
        assert!(svg.lines().all(|line| !line.trim().is_empty()), "{name}");
        for foreign in ["<script", "href", "url(", "@import", "<image"] {
            assert!(!svg.contains(foreign), "{name} has {foreign}");
        }
        let fonts = svg.matches("font-family=\"").count();
        assert_eq!(svg.matches("font-family=\"sans-serif\"").count(), fonts);
        pictures += 1;
    }
    assert_eq!(pictures, 10);
    Ok(())
}

#[tokio::test]
async fn the_double_burst_admits_what_the_guide_says() -> Result<()> {
    let guide = fs::read_to_string(root().join("docs/guide/strategies.md"))?;
    // Rows such as "| `Gcra` | 101 | 198 | …".
    let rows: HashMap<&str, (u64, u64)> = guide
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.trim_end_matches('`');
            Some((
                name,
                (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?),
            ))
        })
        .collect();
    let runs = edge::run().await?;
    let mut drawn = 0;
    for run in &runs {
        for name in &run.names {
            let admitted = (run.at_the_edge(), run.in_a_minute());
            assert_eq!(rows.get(name), Some(&admitted), "{name}");
            drawn += 1;
        }
    }
    assert_eq!(drawn, rows.len());
    assert_eq!((runs[0].at_the_edge(), runs[1].at_the_edge()), (199, 101));
    Ok(())
}

#[tokio::test]
async fn an_outage_admits_the_quota_and_the_shares_at_most() -> Result<()> {
    let runs = outage::run().await?;
    let admitted: Vec<_> = runs
        .iter()
        .map(|run| (run.action, run.admitted()))
        .collect();
    assert_eq!(
        admitted,
        [
            // All of the outage, and the quota.
            ("OnStoreError::Admit", 120 + 100),
            ("OnStoreError::Reject", 100),
            // Two shares of 50, and the quota.
            ("LocalFallback::shared_by(2)", 100 + 100),
            // The same in the outage, after 40 by Redis; nothing is left afterwards.
            ("LocalFallback::shared_by(2).write_back(true)", 40 + 100),
        ]
    );
    Ok(())
}

#[tokio::test]
async fn a_cached_rejection_takes_no_call_and_a_call_takes_all_that_wait() -> Result<()> {
    let steps = cache::run().await?;
    let sum = |of: fn(&cache::Step) -> u64| steps.iter().map(of).sum::<u64>();
    // Six of each of the twenty clients at first, and one ten and twenty seconds later.
    assert_eq!(sum(|step| step.admitted), 20 * (6 + 2));
    assert!(sum(|step| step.cached) > 10 * sum(|step| step.rejected));

    let batch::Run { requests, calls } = batch::run().await?;
    let mut rest = &requests[..];
    for call in &calls {
        let (own, others) = rest.split_at(call.requests);
        assert!(own.iter().all(|request| request.sent == own[0].sent));
        assert!(others.iter().all(|request| request.came > own[0].sent));
        assert_eq!(call.keys, call.requests.min(4));
        rest = others;
    }
    assert!(rest.is_empty());
    Ok(())
}
