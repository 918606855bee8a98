//! The OpenAPI document: it is that of the routes, and every answer is one that it describes.

use std::sync::LazyLock;

use jsonschema::Validator;
use schemars::generate::SchemaSettings;
use serde_json::Map;
use tollgate::admin::api::{self, OPENAPI};
use tollgate_tests::prelude::*;

use self::routes::{routes, schema};
use crate::admin::support::{self, *};

mod routes;

/// Where the document is checked in.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tollgate.openapi.json");

/// Set to write the file.
const WRITE: &str = "TOLLGATE_WRITE_OPENAPI";

static DOCUMENT: LazyLock<Value> = LazyLock::new(generate);

/// The document.
fn generate() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let problem = schema::<api::Problem>(&mut schemas);
    let mut paths = Map::new();
    for route in routes(&mut schemas) {
        let content =
            |content_type: &str, schema: &Value| json!({content_type: {"schema": schema}});
        let json = |schema: &Value| content("application/json", schema);
        let of_answer = content(route.content_type, &route.answer);
        let mut responses = json!({"200": {"description": "The answer", "content": of_answer}});
        if route.path == "/health" {
            responses["503"] =
                json!({"description": "The store is not healthy", "content": json(&route.answer)});
        }
        for status in &route.problems {
            let reason = StatusCode::from_u16(*status)
                .expect("a status")
                .canonical_reason();
            let content = content("application/problem+json", &problem);
            responses[status.to_string()] = json!({"description": reason, "content": content});
        }
        let mut operation = json!({"summary": route.summary, "responses": responses});
        if !route.parameters.is_empty() {
            let parameters = route.parameters.iter().map(|(name, about)| {
                json!({"name": name, "in": "query", "description": about, "schema": {"type": "string"}})
            });
            operation["parameters"] = parameters.collect();
        }
        if let Some(body) = &route.body {
            operation["requestBody"] = json!({"required": true, "content": json(body)});
        }
        if route.is_open {
            // With a token, or without.
            operation["security"] = json!([{}, {"token": []}]);
        }
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tollgate admin API",
            "version": version(),
            "description": "What an operator needs of a rate limiter. Paths are relative to where the application mounts the API.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.take_definitions(true),
        },
    })
}

/// The version of the library.
fn version() -> Value {
    let manifest = fs::read_to_string(tollgate_tests::repository("Cargo.toml"));
    let manifest: toml::Table = manifest.expect("a file").parse().expect("TOML");
    json!(manifest["package"]["version"])
}

/// Fails unless the document describes the answer.
#[track_caller]
pub(crate) fn validate(method: &Method, path: &str, answer: &Answer) {
    let method = method.as_str().to_lowercase();
    let content_type = answer.headers["content-type"].to_str().expect("text");
    let content_type = content_type.split(';').next().expect("a type");
    let operation = &DOCUMENT["paths"][path][method.as_str()];
    let response = &operation["responses"][answer.status.as_str()];
    let schema = match operation {
        // Neither the route nor its problem are in the document.
        Value::Null if answer.status.is_client_error() => {
            &json!({"$ref": "#/components/schemas/Problem"})
        }
        _ => &response["content"][content_type]["schema"],
    };
    assert!(schema.is_object(), "{method} {path} has no such {answer:?}");
    let validator = validator(schema);
    let mut errors = validator.iter_errors(&answer.json);
    if let Some(error) = errors.next() {
        panic!("{method} {path}: {error} in {answer:?}");
    }
}

/// The validator of a schema of the document, which is compiled once.
fn validator(schema: &Value) -> Arc<Validator> {
    static VALIDATORS: Mutex<Option<HashMap<String, Arc<Validator>>>> = Mutex::new(None);
    let compile = || {
        let mut schema = schema.clone();
        schema["components"] = DOCUMENT["components"].clone();
        Arc::new(jsonschema::draft202012::new(&schema).expect("a schema"))
    };
    let mut validators = VALIDATORS.lock().expect("no panic");
    let validators = validators.get_or_insert_default();
    validators
        .entry(schema.to_string())
        .or_insert_with(compile)
        .clone()
}

/// The method and path of each route in the document.
pub(crate) fn operations() -> Vec<(Method, &'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    let operations = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods");
        methods.iter().map(move |(method, operation)| {
            let method = method.to_uppercase().parse().expect("a method");
            (method, path.as_str(), operation)
        })
    });
    operations.collect()
}

#[test]
fn the_openapi_document_that_is_checked_in_is_that_of_the_types() {
    let document = serde_json::to_string_pretty(&*DOCUMENT).expect("JSON") + "\n";
    if env::var_os(WRITE).is_some() {
        fs::write(FILE, &document).expect("a file");
    }
    let checked_in = fs::read_to_string(FILE).expect("a file");
    assert!(
        checked_in == document,
        "tollgate.openapi.json is not that of the types: run `{WRITE}=1 cargo test --all-features --test redis openapi`"
    );
}

#[tokio::test]
async fn every_answer_in_the_document_is_given() {
    let working = support::observed().0;
    let without_activity = support::api();
    let failing = Api::of(support::unreachable());
    let panicking = Api::of(support::panicking().await);
    for (method, path, operation) in operations() {
        let responses = operation["responses"].as_object().expect("responses");
        let mut given = BTreeSet::new();
        let mut note = |answer: Answer| given.insert(answer.status.as_str().to_owned());
        let has_body = method != Method::GET;
        let body = || match has_body {
            true => support::good_body_of(&method, path).to_string(),
            false => String::new(),
        };
        for api in [&working, &failing, &without_activity] {
            note(api.call(method.clone(), path, body()).await);
        }
        let wrong = support::signed(method.clone(), path, "wrong").body(body().into());
        note(working.send(wrong.expect("a request")).await);
        if has_body {
            note(panicking.call(method.clone(), path, body()).await);
            for body in ["{".to_owned(), " ".repeat(70_000)] {
                note(working.call(method.clone(), path, body).await);
            }
            let mut unknown = support::good_body_of(&method, path);
            match path {
                "/explain" => unknown["keys"] = json!({"no-such-policy": "alice"}),
                _ => unknown["policy"] = "no-such-policy".into(),
            }
            let unknown = working.call(method.clone(), path, unknown.to_string());
            note(unknown.await);
            let mut untyped = support::signed(method.clone(), path, TOKEN).body(body().into());
            let headers = untyped.as_mut().expect("a request").headers_mut();
            headers.remove("content-type");
            note(working.send(untyped.expect("a request")).await);
        } else if responses.contains_key("400") {
            if ["/blocks", "/overrides"].contains(&path) {
                note(working.get(&format!("{path}?policy=no-such-policy")).await);
            }
            if path == "/events" {
                let _streams = support::event_streams(&working).await;
                note(working.get(path).await);
            }
            note(working.get(&format!("{path}?no_such_parameter=1")).await);
        }
        let described: BTreeSet<_> = responses.keys().cloned().collect();
        assert_eq!(given, described, "{method} {path}");
    }
}

#[tokio::test]
async fn the_document_is_answered_and_paths_outside_of_it_are_unknown() {
    let api = support::api();
    let document: Value = serde_json::from_str(OPENAPI).expect("JSON");
    assert_eq!(api.get("/openapi.json").await.json, document);
    for path in ["/nothing", "/policies/", "/peek/api"] {
        assert_eq!(api.get(path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
}
