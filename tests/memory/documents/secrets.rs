//! Secrets of documents, which nothing prints.

use crate::documents::support::*;

/// Stands in each secret.
const SECRET: &str = "hunter2";

/// Names the folder of the document, in the process that prints everything.
const FOLDER: &str = "TOLLGATE_TEST_FOLDER";

const TEXT: &str = r#"
allow = [{ policy = "api", keys = ["${HUNTER}"] }]

[bearer]
hash_key = "${TOLLGATE_TEST_HASH_KEY}"

[store]
url = "rediss://user:${TOLLGATE_TEST_PASSWORD}@127.0.0.1:1/0?protocol=resp3"
timeout = "50ms"

[policies.api]
quota = "10/min"
key = "bearer"
"#;

#[test]
fn nothing_prints_a_secret_of_the_environment_or_of_a_file() {
    let folder = testkit::folder();
    fs::write(folder.path().join("limits.toml"), TEXT).expect("a file");
    let password = format!("redis://u:{SECRET}@127.0.0.1:1\n");
    fs::write(folder.path().join("password"), password).expect("a file");
    fs::write(folder.path().join("hash"), "hash:hunter2\n").expect("a file");
    let output = tollgate_tests::child::test(module_path!(), "prints_everything")
        .env(FOLDER, folder.path())
        .env("HUNTER", SECRET)
        .env("TOLLGATE_TEST_PASSWORD", SECRET)
        .env("TOLLGATE_TEST_HASH_KEY", &"68756e74657232".repeat(5)[..64])
        .output()
        .expect("a process");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{printed}");
    #[rustfmt::skip]
    assert_contains(&printed, ["Secret(${TOLLGATE_TEST_HASH_KEY})", "user:${TOLLGATE_TEST_PASSWORD}@", "rate limit store failed", "RedisStore"]);
    for secret in [SECRET, "68756e74"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

#[tokio::test]
async fn prints_everything() {
    let Some(folder) = env::var_os(FOLDER) else {
        // Run by the other test.
        return;
    };
    let trace = tracing_subscriber::filter::LevelFilter::TRACE;
    tracing_subscriber::fmt().with_max_level(trace).init();
    let registry = Registry::new();
    let folder = Path::new(&folder);
    let (path, other) = (folder.join("limits.toml"), folder.join("other.toml"));
    let document = Document::load(path).expect("a document");
    println!("{document:?} {}", document.text());
    let layer = document.layer(&registry).expect("a layer");
    println!("{layer:?} {:?}", layer.limiter());
    println!("{:?}", layer.limiter().check("alice").await);
    let changes = document.reconfigure_layer(&layer, &registry);
    println!("{}", changes.expect("the same"));
    let url = "redis://u:hunter2@127.0.0.1:1";
    println!("{:?}", RedisStore::builder().url(url));
    println!("{:?}", RedisStore::builder().cluster([url]));
    for text in [
        "store.url = { file = 'password' }",
        "store.url = 'redis://u:hunter2@127.0.0.1:1'",
        "store.url = 'redis://u:hunter2'",
        "store.url = 'redi://u:hunter2@127.0.0.1'",
        "store.cluster = 'redis://u:hunter2@127.0.0.1'",
        "store = 'redis://u:hunter2@127.0.0.1'",
        "store = 'hunter2'",
        "store.tls.client_key = 'hunter2'\nstore.tls.client_certificate = 'hunter2'\nstore.url = 'rediss://127.0.0.1'",
        "bearer = 'hunter2'",
        "bearer.hash_key = 'hunter2'",
        "bearer.hash_key = '${A:-hunter2}'",
        "store.sentinel = { master = 'a', urls = ['redis://u:hunter2@a'], server_url = 'redis://u:hunter2@b' }",
        "store.url = 'redis://u:hunter2@127.0.0.1' hunter2",
        "allow = [{ policy = 'api', keys = ['hash:hunter2', 'hunter2', '${A:-hunter2}'] }]",
        "store.url = 'redis://127.0.0.1:1/?protocol=${HUNTER}'",
        "deny = [{ addresses = { file = 'password' } }]",
        "deny = [{ policy = 'api', keys = { file = 'hash' } }]",
    ] {
        let text = format!("{text}\n[policies.api]\nquota = '1/s'\nkey = 'bearer'");
        fs::write(&other, text).expect("a file");
        let parsed = match Document::load(&other) {
            Ok(parsed) => parsed,
            Err(error) => {
                println!("{error} {error:?}");
                continue;
            }
        };
        println!("{parsed:?}");
        match parsed.limiter(&registry) {
            Ok(limiter) => println!("{limiter:?}"),
            Err(error) => println!("{error} {error:?}"),
        }
        if let Err(error) = parsed.reconfigure(layer.limiter(), &registry) {
            println!("{error} {error:?}");
        }
    }
}

#[test]
fn a_secret_in_the_document_is_a_mistake_at_its_path() {
    let in_place = "expected \"${NAME}\" in its place, or { file = \"path\" } for the whole";
    let hash_key = "1f".repeat(32);
    for (settings, path, found) in [
        (
            "store.url = 'redis://u:hunter2@h'",
            "store.url",
            "a password",
        ),
        (
            "store.cluster = ['redis://h', 'redis://:hunter2@h']",
            "store.cluster[1]",
            "a password",
        ),
        (
            "store.sentinel = { master = 'm', urls = ['redis://:hunter2@h'] }",
            "store.sentinel.urls[0]",
            "a password",
        ),
        (
            "store.sentinel = { master = 'm', urls = ['redis://h'], server_url = '${A:-redis://:hunter2@any}' }",
            "store.sentinel.server_url",
            "a password",
        ),
        (
            &format!("bearer.hash_key = '{hash_key}'"),
            "bearer.hash_key",
            "a key",
        ),
        (
            &format!("bearer.hash_key = '${{A:-{hash_key}}}'"),
            "bearer.hash_key",
            "a key",
        ),
    ] {
        let document = document(&format!("{settings}\npolicies.api.quota = '1/s'"));
        let error = document.limiter(&Registry::new()).expect_err(settings);
        let [mistake] = error.mistakes() else {
            panic!("{error}");
        };
        let expected = format!("{path}: found {found} in the document; {in_place}");
        assert_eq!(mistake.to_string(), expected);
        // Its store is not opened, but its text is shown.
        let built = document.builder(&Registry::new());
        assert_eq!(built.expect_err(settings), error);
    }
}
