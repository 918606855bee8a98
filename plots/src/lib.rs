//! Draws the pictures of the documentation: runs strategies and stores on clocks that are set, and draws what they did.
//!
//! No picture has a number that is not a result of the run, or of the benchmark whose file [`over`] reads. Each is drawn twice, for light and for dark pages, as SVG with the
//! same bytes on every run. `cargo xtask plots` writes them to `docs/images`.

use std::{error::Error, fs, io, path::Path};

pub mod batch;
pub mod cache;
mod calls;
pub mod edge;
mod figure;
mod gate;
pub mod outage;
pub mod over;
mod redis;
pub mod traffic;

/// The result of a run or of a drawing.
pub type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Where the pictures are, from the root of the project.
pub const FOLDER: &str = "docs/images";

/// A picture as a file.
#[derive(Debug)]
pub struct Picture {
    /// The file's name.
    pub file: String,
    /// The file's content.
    pub svg: String,
}

/// Runs everything, and draws all pictures.
pub async fn draw() -> Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    let figures = [
        traffic::figure(traffic::run().await?),
        edge::figure(edge::run().await?),
        calls::figure(cache::run().await?, batch::run().await?),
        outage::figure(outage::run().await?),
        over::figure(over::Measured::read(over::FILE)?),
    ];
    for figure in figures {
        for theme in &figure::THEMES {
            pictures.push(Picture {
                file: format!("{}-{}.svg", figure.name, theme.name),
                svg: figure.draw(theme)?,
            });
        }
    }
    Ok(pictures)
}

/// Writes the pictures that a folder does not have as they are. Returns the names of their files.
pub fn write(pictures: &[Picture], folder: &Path) -> io::Result<Vec<String>> {
    let stale = differing(pictures, folder)?;
    for picture in pictures {
        if stale.contains(&picture.file) {
            fs::write(folder.join(&picture.file), &picture.svg)?;
        }
    }
    Ok(stale)
}

/// The names of the pictures whose files are missing from a folder or have other bytes.
pub fn differing(pictures: &[Picture], folder: &Path) -> io::Result<Vec<String>> {
    let mut differing = Vec::new();
    for Picture { file, svg } in pictures {
        match fs::read(folder.join(file)) {
            Ok(found) if found == svg.as_bytes() => {}
            Ok(_) => differing.push(file.clone()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => differing.push(file.clone()),
            Err(error) => return Err(error),
        }
    }
    Ok(differing)
}
