//! The definition as gRPC's own tools compile it, and their client, which learns the messages from the server's reflection.

use tollgate_server::rules::Unit;

use crate::scene::{limit, redis, rules, server};

#[test]
fn the_descriptors_of_reflection_are_those_of_the_definition() {
    let package = env!("CARGO_MANIFEST_DIR");
    let (definition, descriptors) = (
        format!("{package}/proto"),
        format!("{package}/src/descriptors.binpb"),
    );
    testkit::python("descriptors.py", &[&definition, &descriptors], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_knows_the_server_by_reflection_is_answered() {
    let (_clock, redis) = redis();
    let server = server(&redis, &rules([limit("user", "", 2, Unit::Hour)]), &[]).await;
    let address = server.grpc().to_string();
    let client = tokio::task::spawn_blocking(move || testkit::python("envoy.py", &[&address], ""));
    client.await.expect("the client");
}
