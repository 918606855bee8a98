//! Streams that are cut: by the client, by the way to it, or by the server.

use axum::response::Response;
use tollgate::outcome::RequestEnd;
use tonic::{Code, transport::Server};
use tower_http::timeout::ResponseBodyTimeoutLayer;

use crate::sockets::{
    grpc::{Client, ResponseStream, cable, router, serve, serve_tonic, word_channel},
    grpc_served::Served,
    support::*,
};

/// A stream that has sent a word, and waits.
async fn half_way(served: &mut Served) -> ResponseStream {
    let responses = served.client.server_streaming("one wait").await;
    let mut responses = responses.expect("a head");
    responses.expect_next("one").await;
    served.assert_in_flight().await;
    responses
}

#[tokio::test]
async fn a_stream_that_its_client_cancels_half_way_is_charged() {
    for mut served in Served::everywhere().await {
        let responses = half_way(&mut served).await;
        responses.cancel();
        served.assert_settled(DROPPED, None).await;
        // The connection stays open.
        served.client.unary("word").await.expect("a response");
    }
}

#[tokio::test]
async fn a_stream_that_its_client_cancels_is_free_where_configured() {
    for mut served in Served::each(|world| ChargedLayer::when_dropped(world, false)).await {
        let responses = half_way(&mut served).await;
        responses.cancel();
        served.assert_settled(NOTHING, None).await;
    }
}

#[tokio::test]
async fn a_stream_in_both_directions_that_its_client_cancels_is_charged() {
    for mut served in Served::everywhere().await {
        let (say, word_channel) = word_channel();
        let mut responses = served.client.bidi(word_channel).await.expect("a head");
        say.send("one".to_owned()).expect("a call");
        responses.expect_next("one").await;
        served.assert_in_flight().await;
        responses.cancel();
        served.assert_settled(DROPPED, None).await;
        drop(say);
    }
}

#[tokio::test]
async fn a_stream_whose_client_never_reads_and_cancels_is_charged() {
    for mut served in Served::everywhere().await {
        // HTTP/2 lets no more through than its windows hold, and the server waits for the client.
        let responses = served.client.server_streaming("flood").await;
        let responses = responses.expect("a head");
        served.assert_in_flight().await;
        responses.cancel();
        served.assert_settled(DROPPED, None).await;
    }
}

#[tokio::test]
async fn a_stream_from_the_client_that_is_cancelled_is_charged() {
    for served in Served::everywhere().await {
        // The handler works, and reads no more; or it sees the end of the stream, and responds, but its response is not sent.
        for word in ["wait", "one"] {
            let (say, word_channel) = word_channel();
            let mut client = served.client.clone();
            let call = tokio::spawn(async move { client.client_streaming(word_channel).await });
            say.send(word.to_owned()).expect("a call");
            served.assert_in_flight().await;
            call.abort();
            served.assert_settled(DROPPED, None).await;
        }
    }
}

#[tokio::test]
async fn streams_whose_client_disconnects_are_charged() {
    for served in Served::everywhere().await {
        let (way, cut) = cable(served.address).await;
        let mut far = Client::connect(way).await;
        let mut responses = far.server_streaming("one wait").await.expect("a head");
        responses.expect_next("one").await;
        served.assert_in_flight().await;
        cut.abort();
        responses.next().await.expect_err("a broken connection");
        served.assert_settled(DROPPED, None).await;
    }
}

#[tokio::test]
async fn a_stream_that_panics_half_way_is_charged() {
    for mut served in Served::everywhere().await {
        let responses = served.client.server_streaming("one pause panic").await;
        let mut responses = responses.expect("a head");
        while let Ok(response) = responses.next().await {
            assert!(response.is_some(), "it ended well");
        }
        served.assert_settled(DROPPED, None).await;
    }
}

/// Serves the router with a layer that cuts idle bodies, outside or inside of the limits.
async fn cutting(charged_layer: &ChargedLayer, inside: bool) -> Client {
    let cuts = ResponseBodyTimeoutLayer::new(ms(100));
    let router: Router = if inside {
        router().layer(cuts).layer(charged_layer.layer.clone())
    } else {
        router().layer(charged_layer.layer.clone()).layer(cuts)
    };
    Client::connect(serve(router).await).await
}

#[tokio::test]
async fn a_call_that_the_server_cancels_is_charged() {
    let [world, _] = World::both();
    let charged_layer = ChargedLayer::new(&world);
    let server = Server::builder().timeout(ms(50));
    let mut client = Client::connect(serve_tonic(server, charged_layer.layer.clone()).await).await;
    client.unary("wait").await.expect_err("a timeout");
    assert_eq!(charged_layer.settled().await, (DROPPED, None));
}

#[tokio::test]
async fn a_stream_cut_outside_is_charged_and_one_that_breaks_inside_has_failed() {
    let failed = Some((RequestEnd::BodyFailed, Some(200), None));
    for world in World::both() {
        for (inside, settled) in [(false, (DROPPED, None)), (true, (FAILURE, failed))] {
            let charged_layer = ChargedLayer::new(&world);
            let mut client = cutting(&charged_layer, inside).await;
            let responses = client.server_streaming("one wait").await.expect("a head");
            let (_, code) = responses.rest().await;
            assert_ne!(code, Code::Ok);
            assert_eq!(charged_layer.settled().await, settled, "{}", world.name());
        }
    }
}

/// A gRPC response that ends without trailers.
async fn without_trailers() -> Result<Response, Infallible> {
    let mut response = Response::new(Body::from("\0\0\0\0\x04word"));
    let content_type = "application/grpc".parse().expect("a value");
    response.headers_mut().insert("content-type", content_type);
    Ok(response)
}

#[tokio::test]
async fn a_response_that_ends_without_trailers_has_failed() {
    for world in World::both() {
        let charged_layer = ChargedLayer::new(&world);
        let router = Router::new().fallback_service(tower::service_fn(|_| without_trailers()));
        let address = serve(router.layer(charged_layer.layer.clone())).await;
        let mut client = Client::connect(address).await;
        let responses = client.server_streaming("word").await.expect("a head");
        let _ = responses.rest().await;
        let ended = Some((RequestEnd::Completed, Some(200), None));
        assert_eq!(
            charged_layer.settled().await,
            (FAILURE, ended),
            "{}",
            world.name()
        );
    }
}
