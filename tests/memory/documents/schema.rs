//! The JSON Schema of documents, and that it holds for documents.

use jsonschema::Validator;

use crate::documents::{guide, parsing::EVERY_FIELD, support::*};

/// The schema that is checked in, by which editors complete and check documents.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tollgate.schema.json");

/// Set to write the file.
const WRITE: &str = "TOLLGATE_WRITE_SCHEMA";

fn validator() -> Validator {
    jsonschema::draft202012::new(&Document::schema()).expect("a schema of draft 2020-12")
}

/// A document as JSON.
fn json(text: &str, format: Format) -> Value {
    match format {
        Format::Toml => {
            let table: toml::Table = text.parse().expect("TOML");
            serde_json::to_value(table).expect("JSON")
        }
        Format::Yaml => serde_saphyr::from_str(text).expect("YAML"),
        _ => serde_json::from_str(text).expect("JSON"),
    }
}

#[test]
fn the_schema_that_is_checked_in_is_that_of_documents() {
    let schema = serde_json::to_string_pretty(&Document::schema()).expect("JSON") + "\n";
    if env::var_os(WRITE).is_some() {
        fs::write(FILE, &schema).expect("a file");
    }
    let checked_in = fs::read_to_string(FILE).expect("a file");
    assert!(
        checked_in == schema,
        "tollgate.schema.json is not the schema of documents: run `{WRITE}=1 cargo test --workspace --all-features --test memory documents::schema`"
    );
}

#[test]
fn the_schema_holds_for_the_documents_of_examples_and_of_the_guide() {
    let validator = validator();
    let folder = tollgate_tests::repository("examples/configured");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
    let mut documents = vec![
        json(EVERY_FIELD, Format::Toml),
        json(&read("limits.toml"), Format::Toml),
        json(&read("limits.yaml"), Format::Yaml),
    ];
    documents.extend(guide::documents().map(|(_, text)| json(text, Format::Toml)));
    for document in documents {
        let errors = validator.iter_errors(&document);
        let errors: Vec<_> = errors.map(|error| error.to_string()).collect();
        assert_eq!(errors, [""; 0], "{document:#}");
    }
}

#[test]
fn the_schema_does_not_hold_for_mistakes() {
    let validator = validator();
    for text in [
        "polices = {}",
        "policies.api.quota = 5",
        "policies.api.quota = 'ten per minute'",
        "policies.api.shadow = 'yes'",
        "policies.api.charge = { before = 'success' }",
        "headers = 'drafts'",
        "on_store_error = { local_fallback = {} }",
        "store.timeout = 50",
        "store.circuit_breaker_threshold = 'five'",
        "deny = [{ addresses = '192.0.2.1' }]",
        "policies.api.cost = [{ path = '/' }]",
        "policies.api.lease = { ttl = '50ms' }",
        "policies.api.lease = { max_units = 1 }",
        "policies.api.lease = { max_units = 64, ttl = 50 }",
        "policies.api.lease = { max_units = 64, size = 1 }",
    ] {
        assert!(!validator.is_valid(&json(text, Format::Toml)), "{text}");
    }
}
