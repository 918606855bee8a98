//! What reading a document may cost, whatever its text is.

use crate::documents::support::*;
#[cfg(unix)]
use std::os::unix::fs::symlink;
use std::{process::Command, sync::mpsc};

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

/// A text of about `bytes` bytes: `part`, again and again between `begin` and `end`, with the number of each for `<n>`.
fn repeated([begin, part, end]: [&str; 3], bytes: usize) -> String {
    let mut text = begin.to_owned();
    for number in 0.. {
        if text.len() >= bytes {
            break;
        }
        let network = format!("{}.{}", number / 256, number % 256);
        let part = part.replace("<n>", &number.to_string());
        text.push_str(&part.replace("<network>", &network));
    }
    text + end
}

/// A value within as many arrays, or tables.
fn nested(levels: usize, format: Format) -> [String; 2] {
    let (begin, forms) = match format {
        Format::Toml => ("a = ", [["[", "]"], ["{a=", "}"]]),
        Format::Yaml => ("a: ", [["[", "]"], ["{a: ", "}"]]),
        _ => ("{\"a\": ", [["[", "]"], ["{\"a\":", "}"]]),
    };
    let end = if format == Format::Json { "}" } else { "" };
    forms.map(|[open, close]| {
        format!(
            "{begin}{}1{}{end}",
            open.repeat(levels),
            close.repeat(levels)
        )
    })
}

#[test]
fn a_value_within_more_than_64_arrays_and_tables_is_a_mistake_in_each_format() {
    for format in [Format::Toml, Format::Yaml, Format::Json] {
        // The document is a table itself.
        for (levels, is_mistake) in [(63, false), (64, true)] {
            for text in nested(levels, format) {
                assert_eq!(
                    error(&text, format).contains("64 levels"),
                    is_mistake,
                    "{text}"
                );
            }
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
        #[rustfmt::skip]
        let begins = ["a = ", "a = ['''a'''', ", "a = [\"\"\"a\"\"\"\", ", "a = \"\\\nb = ", "# \rb = ", "a' = "];
        for before in begins {
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
    let [text, ones] = ["x".repeat(20_000), "1,".repeat(2_000)];
    let scalar = format!("a: &a {text}\nb: [{}]\n", "*a,".repeat(5_000));
    let long = format!("a: &a [{ones}]\nb: [{}]\n", "*a,".repeat(2_100));
    let mut arrays = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_owned();
    for level in 1..8 {
        let aliases = format!("*a{},", level - 1).repeat(10);
        arrays += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    let mut merged = "a0: &a0 {quota: 1/s, key: peer, shadow: true}\n".to_owned();
    for level in 1..40 {
        let aliases = format!("*a{},", level - 1).repeat(9);
        merged += &format!("a{level}: &a{level} {{<<: [{aliases}]}}\n");
    }
    let anchors: String = (0..60).map(|number| format!("&a{number} [")).collect();
    let anchors = anchors + &ones.repeat(200);
    for text in [scalar, arrays, long, merged, anchors] {
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
        for _ in 0..10_000 {
            let error = AddressList::from_file(&path)
                .err()
                .map(|error| error.to_string());
            assert!(error.is_none_or(|error| error.contains("not a regular file")));
        }
        done.send(())
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
    assert_eq!(read, Ok(()));
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
    }
    now() - start
}

const MAX_TRIES: usize = 30;

#[test]
fn sixteen_times_the_text_takes_at_most_forty_times_as_long() {
    use Format::{Json, Toml, Yaml};

    let live = "[policies.live]\nquota = '1/s'\n";
    let shadow = "[policies.p<n>]\nquota = '1/s'\nshadow = true\n";
    let list = "[policies.p<n>]\nquota = '1/s'\n[[deny]]\npolicy = 'x'\nkeys = []\n";
    let keys =
        "[policies.p<n>]\nquota = '1/s'\nkey = 'path'\n[[deny]]\npolicy = 'p<n>'\nkeys = ['/a']\n";
    let networks = "policies.a.quota = '1/s'\n[[deny]]\naddresses = [";
    let tiers = "[policies.a]\nquota = '1/s'\ntier_quotas = [";
    let paths = "policies.a.quota = '1/s'\n[skip]\npaths = [";
    let costs = "[policies.a]\nquota = '1000/s'\ncost = [";
    let shapes = [
        (Yaml, SMALL, ["", "[", ""]),
        (Yaml, SMALL, ["", "[\n", ""]),
        (Yaml, SMALL, ["", "{a: ", ""]),
        (Yaml, SMALL, ["", "[? ", ""]),
        (Yaml, SMALL, ["", "- ", ""]),
        (Yaml, SMALL, ["", "? ", ""]),
        (Yaml, SMALL, ["", "'a': [", ""]),
        (Yaml, SMALL, ["", "%TAG !a<n>! b\n", "---\na: 1\n"]),
        (Yaml, MANY, ["policies:\n", "  p<n>: {quota: 1/s}\n", ""]),
        (Json, SMALL, ["", "[", ""]),
        (Json, SMALL, ["", "{\"a\":", ""]),
        (Toml, SMALL, ["", "a = 1\n", ""]),
        (Toml, SMALL, ["", "a.", ""]),
        (Toml, SMALL, ["a = [", "1,", "]"]),
        (Toml, SMALL, ["a = [", "[", "]"]),
        (Toml, SMALL, ["skip = {", "a<n>=1,", "}"]),
        (Toml, SMALL, ["[policies.<key>]\n", "x<n> = 1\n", ""]),
        (Toml, MANY, ["", "[policies.p<n>]\nquota = '1/s'\n", ""]),
        (Toml, MANY, ["", "[policies.p<n>]\n", ""]),
        (Toml, SMALL, [live, shadow, ""]),
        (Toml, SMALL, ["", shadow, ""]),
        (Toml, SMALL, [live, list, ""]),
        (Toml, SMALL, [live, keys, ""]),
        (Toml, SMALL, [networks, "'10.<network>.0/24',", "]"]),
        (Toml, SMALL, [tiers, "'1<n>/s',", "]"]),
        (Toml, SMALL, [paths, "'/a<n>',", "]"]),
        (Toml, SMALL, [costs, "{path='/a<n>', cost=2},", "]"]),
    ];
    let mut slow = Vec::new();
    for (format, least, shape) in shapes {
        let [small, large] = [least, least * TIMES].map(|bytes| {
            // `<key>` is as long as the text is.
            repeated(shape, bytes).replace("<key>", &"k".repeat(bytes / 2))
        });
        let is_slow = || {
            let [small, large] = [&small, &large].map(|text| cpu_seconds(text, format));
            println!("{shape:?}: {:.2} ms, {:.2} ms", small * 1e3, large * 1e3);
            // Less than that is not measured well.
            large > 40.0 * small.max(0.001)
        };
        // A process that shares its caches may be slow for a while. What grows with the square takes 256 times as long, always.
        if (0..MAX_TRIES).all(|_| is_slow()) {
            slow.push(shape);
        }
    }
    assert_eq!(slow, [[""; 3]; 0]);
}
