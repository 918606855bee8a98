//! `cargo xtask plots [--check]`: writes the pictures of the documentation, or compares them with the files.

use std::{env, path::Path, process::ExitCode};

use tollgate_plots::{FOLDER, Result, differing, draw, write};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let options: Vec<String> = env::args().skip(1).collect();
    let check = match options.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--check"] => true,
        _ => {
            eprintln!("usage: cargo xtask plots [--check]");
            return Ok(ExitCode::from(2));
        }
    };
    let folder = Path::new(FOLDER);
    let pictures = draw().await?;
    if check {
        let stale = differing(&pictures, folder)?;
        for file in &stale {
            eprintln!(
                "{FOLDER}/{file} is not what the code draws: run `cargo xtask plots`, look at it, and commit it"
            );
        }
        return Ok(match stale.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        });
    }
    for file in write(&pictures, folder)? {
        println!("{FOLDER}/{file} written");
    }
    Ok(ExitCode::SUCCESS)
}
