//! What reading a document may cost, whatever its text is.

#[cfg(unix)]
use std::os::unix::fs::symlink;
use std::{fmt::Write, fs, process::Command, sync::mpsc, thread, time::Instant};

use tollgate::{
    access::AddressList,
    config::{Document, Format, Registry},
};
use tollgate_tests::until::TEST_TIMEOUT;

/// The bytes of the smaller text of a shape.
const SMALL: usize = 4 << 10;

/// Those of the shapes of which a part takes more time than a comparison with all others.
const MANY: usize = 24 << 10;

/// How many times as long the larger text is.
const TIMES: usize = 16;

/// The text's mistakes.
fn error(text: &str, format: Format) -> String {
    let error = Document::parse(text, format).expect_err("mistakes");
    error.to_string()
}

/// A text of about `bytes` bytes: `part`, with the number of each, again and again between `begin` and `end`.
fn repeated(begin: &str, part: impl Fn(usize) -> String, end: &str, bytes: usize) -> String {
    let mut text = begin.to_owned();
    for number in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.push_str(&part(number));
    }
    text + end
}

/// A value within as many arrays, or tables.
fn nested(levels: usize, format: Format) -> [String; 2] {
    let around =
        |open: &str, close: &str| format!("{}1{}", open.repeat(levels), close.repeat(levels));
    match format {
        Format::Toml => [
            format!("a = {}", around("[", "]")),
            format!("a = {}", around("{a=", "}")),
        ],
        Format::Yaml => [
            format!("a: {}", around("[", "]")),
            format!("a: {}", around("{a: ", "}")),
        ],
        _ => [
            format!("{{\"a\": {}}}", around("[", "]")),
            format!("{{\"a\": {}}}", around("{\"a\":", "}")),
        ],
    }
}

#[test]
fn a_value_within_more_than_64_arrays_and_tables_is_a_mistake_in_each_format() {
    for format in [Format::Toml, Format::Yaml, Format::Json] {
        // The document is a table itself.
        for text in nested(63, format) {
            assert!(!error(&text, format).contains("levels"), "{text}");
        }
        for text in nested(64, format) {
            assert!(error(&text, format).contains("64 levels"), "{text}");
        }
    }
    let blocks = ["- ", "? "].map(|level| format!("{}1", level.repeat(65)));
    for text in blocks {
        assert!(error(&text, Format::Yaml).contains("64 levels"), "{text}");
    }
    // Dotted keys within inline tables, also behind what may be mistaken for the rest of a text or a comment.
    let key = "a.".repeat(60);
    for (open, end) in [("{", ""), ("{\n", "\n")] {
        let deep = format!("{open}{key}a{end} =").repeat(70) + "1" + &"}".repeat(70);
        for before in [
            "a = ",
            "a = ['''a'''', ",
            "a = [\"\"\"a\"\"\"\", ",
            "a = \"\\\nb = ",
            "# \rb = ",
            "a' = ",
        ] {
            let text = format!("{before}{deep}");
            assert!(error(&text, Format::Toml).contains("levels"), "{text}");
        }
    }
}

#[test]
fn brackets_in_texts_and_comments_are_no_levels() {
    let entry =
        "  - '[[' # [it's\n  - \"{[\\\"[\"\n  - a[b\n  - [a, 'it''s [', \"]\", it's, a#b] # [\n";
    let text = format!("skip:\n  paths:\n{}", entry.repeat(30));
    assert!(!error(&text, Format::Yaml).contains("levels"), "{text}");
}

#[test]
fn aliases_that_expand_to_more_than_4_mib_are_a_mistake_that_takes_little_memory() {
    let scalar = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(20_000),
        "*a,".repeat(5_000)
    );
    let mut arrays = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_owned();
    for level in 1..8 {
        let _ = writeln!(
            arrays,
            "a{level}: &a{level} [{}]",
            format!("*a{},", level - 1).repeat(10)
        );
    }
    let long = format!(
        "a: &a [{}]\nb: [{}]\n",
        "1,".repeat(2_000),
        "*a,".repeat(2_100)
    );
    for text in [scalar, arrays, long] {
        let mut shown = String::new();
        let used = allocation_counter::measure(|| shown = error(&text, Format::Yaml));
        // The parser has a bound of its own for arrays.
        let bounds = ["more than 4 MiB of text", "repetition limit"];
        assert!(bounds.iter().any(|bound| shown.contains(bound)), "{shown}");
        assert!(used.bytes_max < 128 << 20, "{used:?}");
    }
    // As many as a document has use for.
    let text = "policies:\n  a: &a {quota: 1/s, key: peer}\n".to_owned();
    let text = (0..1_000).fold(text, |text, number| format!("{text}  p{number}: *a\n"));
    Document::parse(&text, Format::Yaml).expect("a document");
}

/// Between a look at a file's path and its opening another file may be put there.
#[cfg(unix)]
#[test]
fn a_pipe_that_takes_the_place_of_a_file_keeps_no_thread() {
    let folder = testkit::folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("good"), "192.0.2.1\n").expect("a file");
    let made = Command::new("mkfifo").arg(at("pipe")).status();
    assert!(made.expect("mkfifo").success());
    let (path, next) = (at("list.txt"), at("next"));
    symlink(at("good"), &path).expect("a link");
    let (done, ends) = mpsc::channel();
    let start = Instant::now();
    thread::spawn(move || {
        let mut read = 0;
        while read < 10_000 {
            let error = AddressList::from_file(&path)
                .err()
                .map(|error| error.to_string());
            assert!(error.is_none_or(|error| error.contains("not a regular file")));
            read += 1;
        }
        done.send(read)
    });
    let read = loop {
        for target in ["pipe", "good"] {
            symlink(at(target), &next).expect("a link");
            fs::rename(&next, at("list.txt")).expect("a file");
        }
        match ends.try_recv() {
            Err(mpsc::TryRecvError::Empty) if start.elapsed() < TEST_TIMEOUT => {}
            read => break read,
        }
    };
    assert_eq!(read, Ok(10_000));
}

/// The CPU time of this thread, in seconds, that reading, building and replacing a document takes.
fn cpu_seconds(text: &str, format: Format) -> f64 {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let registry = Registry::new();
    let start = now();
    if let Ok(document) = Document::parse(text, format)
        && let Ok(limiter) = document.limiter(&registry)
    {
        document.reconfigure(&limiter, &registry).expect("the same");
        let _ = limiter.document();
    }
    now() - start
}

#[test]
fn sixteen_times_the_text_takes_at_most_sixty_four_times_as_long() {
    let text = |text: &'static str| move |_| text.to_owned();
    type Shape = (&'static str, Format, Box<dyn Fn(usize) -> String>);
    let shape = |name,
                 format,
                 begin: &'static str,
                 part: fn(usize) -> String,
                 end: &'static str|
     -> Shape {
        (
            name,
            format,
            Box::new(move |bytes| repeated(begin, part, end, bytes)),
        )
    };
    let again = |part: &'static str, format| -> Shape {
        (
            part,
            format,
            Box::new(move |bytes| repeated("", text(part), "", bytes)),
        )
    };
    let long_key = |bytes: usize| {
        let table = format!("[policies.{}]\n", "k".repeat(bytes / 2));
        repeated(&table, |number| format!("x{number} = 1\n"), "", bytes)
    };
    let policies = "[policies.live]\nquota = '1/s'\n";
    let shapes: Vec<Shape> = vec![
        again("[", Format::Yaml),
        again("[\n", Format::Yaml),
        again("{a: ", Format::Yaml),
        again("[? ", Format::Yaml),
        again("- ", Format::Yaml),
        again("? ", Format::Yaml),
        again("'a': [", Format::Yaml),
        again("[", Format::Json),
        again("{\"a\":", Format::Json),
        again("a = 1\n", Format::Toml),
        again("a.", Format::Toml),
        shape(
            "directives",
            Format::Yaml,
            "",
            |number| format!("%TAG !a{number}! b\n"),
            "---\na: 1\n",
        ),
        shape(
            "an array in one line",
            Format::Toml,
            "a = [",
            |_| "1,".to_owned(),
            "]",
        ),
        shape(
            "arrays in one line",
            Format::Toml,
            "a = [",
            |_| "[".to_owned(),
            "]",
        ),
        shape(
            "unknown keys in one line",
            Format::Toml,
            "skip = {",
            |number| format!("a{number}=1,"),
            "}",
        ),
        ("a long name", Format::Toml, Box::new(long_key)),
        shape(
            "policies",
            Format::Toml,
            "",
            |number| format!("[policies.p{number}]\nquota = '1/s'\n"),
            "",
        ),
        shape(
            "policies in YAML",
            Format::Yaml,
            "policies:\n",
            |number| format!("  p{number}: {{quota: 1/s}}\n"),
            "",
        ),
        shape(
            "policies without a quota",
            Format::Toml,
            "",
            |number| format!("[policies.p{number}]\n"),
            "",
        ),
        shape(
            "shadows of a policy",
            Format::Toml,
            policies,
            |number| format!("[policies.p{number}]\nquota = '1/s'\nshadow_of = 'live'\n"),
            "",
        ),
        shape(
            "shadows of none",
            Format::Toml,
            "",
            |number| format!("[policies.p{number}]\nquota = '1/s'\nshadow_of = 'x'\n"),
            "",
        ),
        shape(
            "lists of no policy",
            Format::Toml,
            policies,
            |number| {
                format!("[policies.p{number}]\nquota = '1/s'\n[[deny]]\npolicy = 'x'\nkeys = []\n")
            },
            "",
        ),
        shape(
            "lists of keys",
            Format::Toml,
            policies,
            |number| {
                format!(
                    "[policies.p{number}]\nquota = '1/s'\nkey = 'path'\n[[deny]]\npolicy = 'p{number}'\nkeys = ['/a']\n"
                )
            },
            "",
        ),
        shape(
            "addresses",
            Format::Toml,
            "policies.a.quota = '1/s'\n[[deny]]\naddresses = [",
            |number| format!("'10.{}.{}.0/24',", number / 256, number % 256),
            "]",
        ),
        shape(
            "quotas of tiers",
            Format::Toml,
            "[policies.a]\nquota = '1/s'\ntier_quotas = [",
            |number| format!("'{}/s',", number + 1),
            "]",
        ),
        shape(
            "paths",
            Format::Toml,
            "policies.a.quota = '1/s'\n[skip]\npaths = [",
            |number| format!("'/a{number}',"),
            "]",
        ),
        shape(
            "costs",
            Format::Toml,
            "[policies.a]\nquota = '1000/s'\ncost = [",
            |number| format!("{{path='/a{number}', cost=2}},"),
            "]",
        ),
    ];
    let mut slow = Vec::new();
    for (name, format, text) in shapes {
        let least = if name.starts_with("policies") {
            MANY
        } else {
            SMALL
        };
        let [small, large] = [least, least * TIMES].map(&text);
        let is_slow = || {
            let [small, large] = [&small, &large].map(|text| cpu_seconds(text, format));
            println!("{name:?}: {:.2} ms, {:.2} ms", small * 1e3, large * 1e3);
            // Less than that is not measured well.
            large > 64.0 * small.max(0.001)
        };
        // A process that shares its caches may be slow once.
        if is_slow() && is_slow() {
            slow.push(name);
        }
    }
    assert_eq!(slow, [""; 0]);
}
