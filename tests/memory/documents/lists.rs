//! Access lists of documents: their entries, and files of them.

use crate::documents::support::*;
use tollgate::config::LoadError;
use tollgate_tests::service::send;

const POLICY: &str = "[policies.api]\nquota = '10/min'\nkey = 'header:x-api-key'\n";

/// The layer of a document in this folder that begins with these lists.
fn layer(folder: &Path, lists: &str) -> Result<RateLimitLayer, LoadError> {
    loaded(folder, &format!("{lists}\n{POLICY}"), &Registry::new())
}

/// The layer of a document in this folder.
fn loaded(folder: &Path, text: &str, code: &Registry) -> Result<RateLimitLayer, LoadError> {
    let path = folder.join("limits.toml");
    fs::write(&path, text).expect("a file");
    Document::load(path)?.layer(code)
}

/// The status of the response to a request with this key.
async fn status(layer: &RateLimitLayer, key: &str) -> u16 {
    send(layer, Request::get("/").header("x-api-key", key)).await
}

#[tokio::test]
async fn a_key_is_a_credential_or_comes_from_the_environment() {
    let folder = testkit::folder();
    let name = env!("CARGO_PKG_NAME");
    fs::write(folder.path().join("keys"), "ab\n${c}\nkey:abc\na+hash:b\n").expect("a file");
    let lists = "deny = [{ policy = 'api', keys = ['${CARGO_PKG_NAME}'] }, { policy = 'api', keys = { file = 'keys' } }]";
    let layer = layer(folder.path(), lists).expect("a layer");
    // A credential that looks like a key that is shown is a credential.
    for denied in [name, "ab", "${c}", "key:abc", "a+hash:b"] {
        assert_eq!(status(&layer, denied).await, 403, "{denied}");
    }
    for other in ["${CARGO_PKG_NAME}", "$${c}", "abc"] {
        assert_eq!(status(&layer, other).await, 200, "{other}");
    }
}

#[test]
fn a_credential_in_the_document_is_a_mistake_and_a_readable_key_is_none() {
    let hash = "hash:7lEM2SSxGPnYHjFZP0wx";
    #[rustfmt::skip]
    let rows = [
        ("bearer", "'sk_live'", true),
        ("bearer", "'a${NO_SUCH_VARIABLE:-b}'", true),
        ("bearer", "'${NO_SUCH_VARIABLE:-sk_live}'", true),
        ("bearer", "'${CARGO_PKG_NAME}'", false),
        ("bearer", &format!("'{hash}'"), false),
        ("same(header:x-api-key, bearer)", "'sk_live'", true),
        ("cookie:session", "'0123'", true),
        ("cookie:language readable", "'en'", false),
        ("header:x-tenant secret", "'acme'", true),
        ("header:x-tenant", "'a tenant whose name is long, so that its key is a hash'", false),
        ("header:x-tenant", "'a${NO_SUCH_VARIABLE:-b}'", false),
        ("header:x-tenant", "'$${c}'", false),
        ("peer", "'192.0.2.7'", false),
        ("path", "'/a'", false),
        ("[header:x-tenant, bearer]", "['acme', 'sk_live']", true),
        ("[header:x-tenant, bearer]", "['acme', '${CARGO_PKG_NAME}']", false),
        ("[peer, bearer]", "['192.0.2.7', 'sk_live']", true),
        ("[peer, bearer]", "['192.0.2.7', '${CARGO_PKG_NAME}']", false),
        ("bearer | peer", "['1', 'sk_live']", true),
        ("bearer | peer", "['2', '192.0.2.7']", false),
        ("[header:x-tenant, path]", "['acme', '/a']", false),
        ("[peer, client_ip, header:x-tenant]", "['192.0.2.7', '192.0.2.7', 'acme']", false),
    ];
    for (key, entry, is_mistake) in rows {
        let list = format!("deny = [{{ policy = 'api', keys = [{entry}] }}]");
        let text = format!("{list}\n[policies.api]\nquota = '1/s'\nkey = '{key}'");
        let built = document(&text).limiter(&Registry::new());
        match built {
            Ok(_) => assert!(!is_mistake, "{key}: {entry}"),
            Err(error) => {
                assert!(is_mistake, "{key}: {entry}: {error}");
                let expected = "1:35: deny[0].keys[0]: found a credential in the document; expected hash: and the 20 characters \
                                of its key, \"${NAME}\", or { file = \"path\" } for all keys";
                assert_eq!(error.to_string(), expected, "{key}: {entry}");
            }
        }
    }
}

#[tokio::test]
async fn a_file_beside_the_document_lists_addresses_of_clients_and_not_of_their_proxy() {
    let folder = testkit::folder();
    fs::write(folder.path().join("denied.txt"), "192.0.2.7\n").expect("a file");
    let lists = "client_ip.trusted_proxies = ['10.0.0.1']\ndeny = [{ addresses = { file = 'denied.txt' } }]";
    let layer = layer(folder.path(), lists).expect("a layer");
    for (client, expected) in [("192.0.2.7", 403), ("192.0.2.8", 200)] {
        let proxy = PeerAddr(([10, 0, 0, 1], 1).into());
        let request = Request::get("/").header("x-api-key", "k").extension(proxy);
        let status = send(&layer, request.header("x-forwarded-for", client)).await;
        assert_eq!(status, expected, "{client}");
    }
}

#[test]
fn a_text_without_the_number_of_its_alternative_is_a_mistake_that_says_so() {
    let text = r#"
deny = [{ policy = "api", keys = ["${CARGO_PKG_NAME}", ["2", "hash:7lEM2SSxGPnYHjFZP0wx"]] }]
[policies.api]
quota = "10/min"
key = "header:x-api-key | peer"
"#;
    let error = document(text).limiter(&Registry::new());
    let error = error.expect_err("no keys").to_string();
    let expected = "found text that is no key; expected an array of the alternative's number, from \"1\" on, and the text of \
                    which the policy's key makes a key, or hash: and the 20 characters of one; the key is header:x-api-key | peer";
    assert_eq!(
        error,
        format!("2:35: deny[0].keys[0]: {expected}\n2:56: deny[0].keys[1]: {expected}")
    );
}

#[tokio::test]
async fn keys_that_code_of_the_application_makes_are_listed_by_their_texts() {
    let folder = testkit::folder();
    fs::write(folder.path().join("keys.txt"), "mallory\n").expect("a file");
    let user = || extract::extension::<String>(|user| Key::new(user));
    for keys in [
        "['mallory', 'eve']",
        "{ file = 'keys.txt' }",
        "['key:mallory']",
    ] {
        let list = format!("deny = [{{ policy = 'api', keys = {keys} }}]");
        let text = format!("{list}\n[policies.api]\nquota = '10/min'\nkey = 'user'\n");
        let code = Registry::new().key("user", user());
        let layer = loaded(folder.path(), &text, &code).expect(keys);
        for (name, expected) in [("mallory", 403), ("alice", 200)] {
            let request = Request::get("/").extension(name.to_owned());
            assert_eq!(send(&layer, request).await, expected, "{keys}: {name}");
        }
    }
}

#[test]
fn keys_as_they_are_shown_or_named_are_read() {
    let code = || extract::extension::<String>(|key| Key::new(key));
    let (user, tenant) = ("key = 'user'\n", "key = 'header:x-tenant'\n");
    let choice = "key = 'header:x-api-key | peer'\n";
    for (key, entry) in [
        ("", "'key:mallory'"),
        (user, "'key:tenant-7+/ocr'"),
        (user, "'mallory'"),
        (user, "'hash:7lEM2SSxGPnYHjFZP0wx+G'"),
        (user, "'hash:7lEM2SSxGPnYHjFZP0wx'"),
        (tenant, "'${CARGO_PKG_NAME}'"),
        (choice, "['1', 'hash:7lEM2SSxGPnYHjFZP0wx']"),
    ] {
        let list = format!("deny = [{{ policy = 'api', keys = [{entry}] }}]");
        let text = format!("{list}\n[policies.api]\nquota = '10/min'\n{key}");
        let registry = Registry::new().key("user", code());
        document(&text).layer(&registry).expect(entry);
    }
}
