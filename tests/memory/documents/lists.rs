//! Access lists of documents: their entries, and files of them.

use std::{convert::Infallible, fs, path::Path};

use axum::body::Body;
use http::{Request, Response, request::Parts};
use tollgate::{
    PeerAddr, RateLimitLayer,
    config::{Document, LoadError, Registry},
};
use tower::{ServiceBuilder, ServiceExt};

use crate::documents::support::{document, parts};

const POLICY: &str = "[policies.api]\nquota = '10/min'\nkey = 'header:x-api-key'\n";

/// The layer of a document in this folder that begins with these lists.
fn layer(folder: &Path, lists: &str) -> Result<RateLimitLayer, LoadError> {
    let path = folder.join("limits.toml");
    fs::write(&path, format!("{lists}\n{POLICY}")).expect("a file");
    Document::load(path)?.layer(&Registry::new())
}

/// The status of the response to a request with this key.
async fn status(layer: &RateLimitLayer, key: &str) -> u16 {
    status_of(layer, parts("GET", "/", &[("x-api-key", key)])).await
}

async fn status_of(layer: &RateLimitLayer, head: Parts) -> u16 {
    let ok = async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()));
    let service = ServiceBuilder::new().layer(layer.clone()).service_fn(ok);
    let response = service
        .oneshot(Request::from_parts(head, Body::empty()))
        .await
        .unwrap_or_else(|error| match error {});
    response.status().as_u16()
}

#[tokio::test]
async fn a_key_may_come_from_the_environment() {
    let folder = testkit::folder();
    let name = env!("CARGO_PKG_NAME");
    let lists = "deny = [{ policy = 'api', keys = ['${CARGO_PKG_NAME}', 'a${NO_SUCH_VARIABLE:-b}', '$${c}'] }]";
    let layer = layer(folder.path(), lists).expect("a layer");
    for denied in [name, "ab", "${c}"] {
        assert_eq!(status(&layer, denied).await, 403, "{denied}");
    }
    for other in ["${CARGO_PKG_NAME}", "$${c}"] {
        assert_eq!(status(&layer, other).await, 200, "{other}");
    }
}

#[tokio::test]
async fn a_file_beside_the_document_lists_addresses_of_clients_and_not_of_their_proxy() {
    let folder = testkit::folder();
    fs::write(folder.path().join("denied.txt"), "192.0.2.7\n").expect("a file");
    let lists = "client_ip.trusted_proxies = ['10.0.0.1']\ndeny = [{ addresses = { file = 'denied.txt' } }]";
    let layer = layer(folder.path(), lists).expect("a layer");
    for (client, expected) in [("192.0.2.7", 403), ("192.0.2.8", 200)] {
        let fields = [("x-api-key", "k"), ("x-forwarded-for", client)];
        let mut head = parts("GET", "/", &fields);
        let proxy = PeerAddr(([10, 0, 0, 1], 1).into());
        head.extensions.insert(proxy);
        assert_eq!(status_of(&layer, head).await, expected, "{client}");
    }
}

#[test]
fn a_line_of_a_file_that_is_no_key_is_a_mistake() {
    let folder = testkit::folder();
    fs::write(folder.path().join("keys.txt"), "192.0.2.7\nalice\n").expect("a file");
    let path = folder.path().join("limits.toml");
    let lists = "deny = [{ policy = 'api', keys = { file = 'keys.txt' } }]";
    let policy = "[policies.api]\nquota = '10/min'\nkey = 'peer'\n";
    fs::write(&path, format!("{lists}\n{policy}")).expect("a file");
    let document = Document::load(path).expect("a document");
    let error = document.layer(&Registry::new()).expect_err("no address");
    let found = "deny[0].keys.file: found a file with lines that are no keys";
    assert!(error.to_string().contains(found), "{error}");
}

#[test]
fn a_key_from_a_variable_that_is_not_set_is_a_mistake() {
    let folder = testkit::folder();
    let lists = "allow = [{ policy = 'api', keys = [['${NO_SUCH_VARIABLE}'], 'a$'] }]";
    let error = layer(folder.path(), lists).expect_err("no key").to_string();
    let lines: Vec<_> = error
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(_, mistake)| mistake)
        .collect();
    assert_eq!(
        lines,
        [
            "allow[0].keys[0]: found ${NO_SUCH_VARIABLE}, a variable that is not set; expected the variable NO_SUCH_VARIABLE in the environment",
            "allow[0].keys[1]: found a $ that is not followed by the name of a variable in braces; expected \"${NAME}\", or \"$$\" for a $",
        ]
    );
}

#[test]
fn a_list_is_not_read_from_a_pipe_or_a_device() {
    let folder = testkit::folder();
    for list in [
        "{ addresses = { file = '/dev/null' } }",
        "{ policy = 'api', keys = { file = '/dev/null' } }",
    ] {
        let error = layer(folder.path(), &format!("deny = [{list}]")).expect_err("a device");
        let message = "expected a file that can be read: it is not a regular file";
        assert!(error.to_string().ends_with(message), "{error}");
    }
}

#[tokio::test]
async fn a_key_of_which_a_part_is_hashed_is_written_so_that_it_can_be_loaded() {
    let text = r#"
deny = [{ policy = "api", keys = [["1", "sk_stolen"], ["2", "192.0.2.1"]] }]
[policies.api]
quota = "10/min"
key = "header:x-api-key | peer"
"#;
    let registry = Registry::new();
    let layer = document(text).layer(&registry).expect("a layer");
    let written = layer.document();
    let again = written.layer(&registry).expect("a layer");
    assert_eq!(again.document(), written);
    assert_eq!(status(&again, "sk_stolen").await, 403);
    assert_eq!(status(&again, "sk_other").await, 200);
}

#[test]
fn a_text_without_the_number_of_its_alternative_is_a_mistake_that_says_so() {
    let text = r#"
deny = [{ policy = "api", keys = ["sk_stolen", ["2", "hash:7lEM2SSxGPnYHjFZP0wx"]] }]
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
        format!("2:35: deny[0].keys[0]: {expected}\n2:48: deny[0].keys[1]: {expected}")
    );
}
