//! The program's commands on documents: each returns what it prints.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;

mod check;
mod convert;

pub use self::{check::Check, convert::Convert};
use crate::{
    document::{self, Mistakes, Options},
    rules::Rules,
};

/// The documents that a command reads.
#[derive(Clone, Debug, Args)]
struct Documents {
    /// The files, in YAML, or folders of files that end in .yaml or .yml.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    reading: Options,
}

impl Documents {
    fn load(&self) -> Result<Rules, Mistakes> {
        document::load(&self.files, self.reading)
    }
}

/// Prints the text of a command to standard output, or the mistakes to standard error. Exit code 0, or 2 for mistakes; 3 if it can't be
/// printed.
pub fn finish(result: Result<String, Mistakes>) -> ExitCode {
    let printed = match &result {
        Ok(text) => io::stdout().lock().write_all(text.as_bytes()),
        Err(mistakes) => writeln!(io::stderr().lock(), "{mistakes}"),
    };
    match (result, printed) {
        (Err(_), _) => ExitCode::from(2),
        (Ok(_), Ok(())) => ExitCode::SUCCESS,
        (Ok(_), Err(_)) => ExitCode::from(3),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs, process,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use clap::{Parser, Subcommand};

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(Debug, Subcommand)]
    enum Command {
        Check(Check),
        Convert(Convert),
    }

    /// Runs a command on a file with this text.
    fn run(command: &str, text: &str) -> Result<String, Mistakes> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-server-{}-{number}-{command}.yaml", process::id());
        let file = env::temp_dir().join(name);
        fs::write(&file, text).expect("a file");
        let arguments = ["tollgate-server", command, file.to_str().expect("a name")];
        let result = match Arguments::try_parse_from(arguments)
            .expect("a command")
            .command
        {
            Command::Check(check) => check.run(),
            Command::Convert(convert) => convert.run(),
        };
        fs::remove_file(file).expect("the file");
        result
    }

    const RULES: &str = "
domain: shop
descriptors:
  - key: user
    value: a b
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 5, name: x, replaces: [{ name: z }] }
    descriptors:
      - key: path
        metadata: { a: 1 }
        rate_limit: { unlimited: true }
";

    #[test]
    fn check_lists_rules_and_the_names_of_their_counters() {
        let printed = run("check", RULES).expect("no mistake");
        let expected = "\
domain shop: 2 rules, 2 limits
  user = \"a b\", shadow_mode
    limit x: quota: 5/min, strategy: calendar_window from_epoch, on_reject: charge, independent: true, counted as shop/user=a%20b, replaces z
    path, metadata
      limit: unlimited
";
        assert_eq!(printed, expected);
    }

    #[test]
    fn convert_prints_a_document_of_our_own() {
        let printed = run("convert", RULES).expect("no mistake");
        assert!(
            printed.starts_with("format: tollgate/v1\ndomain: shop\n"),
            "{printed}"
        );
        assert_eq!(run("convert", &printed), Ok(printed));
    }

    #[test]
    fn mistakes_and_files_that_cannot_be_read_end_with_2() {
        let mistakes = run("check", "domain: shop\ndescriptors: 5");
        let text = mistakes.as_ref().expect_err("a mistake").to_string();
        assert!(text.contains("check.yaml:2:14: expected a list"), "{text}");
        assert_eq!(finish(mistakes), ExitCode::from(2));
        let arguments = ["tollgate-server", "check", "no such file"];
        let Command::Check(check) = Arguments::parse_from(arguments).command else {
            panic!("another command");
        };
        let error = check.run().expect_err("no file").to_string();
        assert!(error.starts_with("no such file: can't be read"), "{error}");
    }

    #[test]
    fn the_documents_of_a_folder_are_read_in_the_order_of_their_names() {
        let folder = env::temp_dir().join(format!("tollgate-server-{}", process::id()));
        fs::create_dir_all(folder.join("d.yaml")).expect("a folder");
        for (name, text) in [
            ("b.yaml", "domain: b\ndescriptors: 5"),
            ("a.yml", "domain: a\ndescriptors: 5"),
            ("c.txt", "domain: c\ndescriptors: 5"),
        ] {
            fs::write(folder.join(name), text).expect("a file");
        }
        let read = document::load(&[&folder], Options::default());
        fs::remove_dir_all(&folder).expect("the folder");
        let error = read.map(drop).expect_err("two mistakes");
        let files = error.mistakes().iter().map(|mistake| &*mistake.file);
        let names: Vec<_> = files.filter_map(|file| file.rsplit('/').next()).collect();
        assert_eq!(names, ["a.yml", "b.yaml"]);
    }
}
