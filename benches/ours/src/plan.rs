//! How much is measured.

use std::{path::PathBuf, time::Duration};

/// How long it takes, and how many keys there are.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds that count.
    pub rounds: usize,
    /// How long each contender runs in a round.
    pub time: Duration,
    /// Keys of the cases with many.
    pub keys: usize,
    /// Keys whose memory is measured.
    pub stored: usize,
    /// Keys of the largest case; none leaves it out.
    pub vast: Option<usize>,
    /// The program that runs as each process of a fleet: this one.
    pub program: PathBuf,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rounds: 5,
            time: Duration::from_secs(1),
            keys: 100_000,
            stored: 1_000_000,
            vast: Some(10_000_000),
            program: std::env::current_exe().unwrap_or_default(),
        }
    }
}

impl Plan {
    /// Enough to see that every case works, and not to measure anything.
    pub fn tiny() -> Self {
        Self {
            rounds: 1,
            time: Duration::from_millis(20),
            keys: 200,
            stored: 2_000,
            vast: Some(5_000),
            ..Self::default()
        }
    }
}

/// The options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How much is measured.
    pub plan: Plan,
    /// Which cases; none are all.
    pub only: Vec<String>,
    /// Where results are written to.
    pub out: Option<PathBuf>,
}

/// What the options are.
pub const USAGE: &str = "\
options:
  --only CASE[,CASE]  these cases only
  --rounds N          rounds that count: 5 unless set
  --seconds S         how long each contender runs in a round: 1 unless set
  --quick             without the case of ten million keys
  --out DIR           where JSON and the chart go";

impl Options {
    /// Reads the command line's words.
    ///
    /// # Errors
    ///
    /// If there is a word that it doesn't know, or a number that isn't one.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--quick" => options.plan.vast = None,
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--out" => options.out = Some(value()?.into()),
                "--rounds" => match value()?.parse() {
                    Ok(rounds) if rounds > 0 => options.plan.rounds = rounds,
                    _ => return Err("--rounds needs a number from 1 on".into()),
                },
                "--seconds" => match value()?.parse() {
                    Ok(seconds) if (0.01..=60.0).contains(&seconds) => {
                        options.plan.time = Duration::from_secs_f64(seconds);
                    }
                    _ => return Err("--seconds needs a number from 0.01 to 60".into()),
                },
                _ => return Err(format!("no such option: {word}")),
            }
        }
        Ok(options)
    }
}
