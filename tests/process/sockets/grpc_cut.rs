//! Calls that are cut: by the client, by the way to it, or by the server.

use futures_util::{StreamExt, stream};
use tollgate::outcome::RequestEnd;
use tonic::{Request, transport::Server};
use tower_http::timeout::ResponseBodyTimeoutLayer;

use crate::sockets::{
    grpc::{
        BIDI, CLIENT_STREAMING, Client, SERVER_STREAMING, UNARY, cable, one, router, serve,
        serve_tonic,
    },
    grpc_served::Served,
    support::*,
};

/// A method, what its client says, whether it may go on, and what it hears before it cancels: nothing of a call without a response yet.
type Cut = (&'static str, &'static str, bool, Option<&'static str>);

const CUTS: [Cut; 6] = [
    (UNARY, "wait", false, None),
    (SERVER_STREAMING, "one wait", false, Some("one")),
    // HTTP/2 lets no more through than its windows hold, and the server waits for the client, which never reads.
    (SERVER_STREAMING, "flood", false, Some("")),
    // The handler works, and reads no more; or it sees the end of the stream, and responds, but its response is not sent.
    (CLIENT_STREAMING, "wait", true, None),
    (CLIENT_STREAMING, "one", true, None),
    (BIDI, "one", true, Some("one")),
];

/// Begins a call, and cancels it once it is in flight.
async fn cancel(served: &Served, (path, said, goes_on, heard): Cut) {
    let said = stream::iter([said.to_owned()]);
    let rest = match goes_on {
        true => stream::pending().left_stream(),
        false => stream::empty().right_stream(),
    };
    let (mut client, request) = (served.client.clone(), Request::new(said.chain(rest)));
    let call = tokio::spawn(async move { client.open(path, request).await });
    let Some(heard) = heard else {
        served.assert_in_flight().await;
        return call.abort();
    };
    let mut responses = call.await.expect("no panic").expect("a head");
    for word in heard.split_whitespace() {
        responses.expect_next(word).await;
    }
    served.assert_in_flight().await;
    responses.cancel();
}

#[tokio::test]
async fn a_call_that_its_client_cancels_is_charged_or_free_where_configured() {
    for (charges, charged) in [(true, DROPPED), (false, NOTHING)] {
        for mut served in Served::each(|world| ChargedLayer::when_dropped(world, charges)).await {
            for cut in CUTS {
                let _case = Case(format!("{cut:?}"));
                cancel(&served, cut).await;
                served.assert_settled(charged, None).await;
            }
            // The connection stays open, and a call whose outcome is known is still charged by it.
            served.client.unary("fail:2").await.expect_err("an error");
            served.assert_completed(2).await;
        }
    }
}

#[tokio::test]
async fn a_call_whose_deadline_passes_or_whose_client_disconnects_is_charged() {
    let deadline = secs(60);
    for served in Served::everywhere().await {
        let (mut client, mut request) = (served.client.clone(), one("wait"));
        request.set_timeout(deadline);
        let call = tokio::spawn(async move { client.open(UNARY, request).await });
        served.assert_in_flight().await;
        // The deadline is over, on a machine of any speed.
        tokio::time::pause();
        tokio::time::advance(deadline).await;
        tokio::time::resume();
        call.await.expect("no panic").expect_err("a deadline");
        served.assert_settled(DROPPED, None).await;

        let (way, cut) = cable(served.address).await;
        let mut far = Client::connect(way).await;
        let responses = far.open(SERVER_STREAMING, one("one wait")).await;
        let mut responses = responses.expect("a head");
        responses.expect_next("one").await;
        served.assert_in_flight().await;
        cut.abort();
        responses.next().await.expect_err("a broken connection");
        served.assert_settled(DROPPED, None).await;
    }
}

#[tokio::test]
async fn a_call_whose_handler_panics_is_charged() {
    for mut served in Served::everywhere().await {
        for (path, said) in [(UNARY, "panic"), (SERVER_STREAMING, "one pause panic")] {
            served.client.call(path, said).await.expect_err("a panic");
            served.assert_settled(DROPPED, None).await;
        }
    }
}

/// By its timeout, or by a layer that cuts idle bodies, outside or inside of the limits: a stream that breaks inside has failed.
#[tokio::test]
async fn a_call_that_the_server_cuts_is_charged() {
    let failed = Some((RequestEnd::BodyFailed, Some(200), None));
    let cuts = || ResponseBodyTimeoutLayer::new(ms(100));
    for world in World::both() {
        for (by, path, word, settled) in [
            ("timeout", UNARY, "wait", (DROPPED, None)),
            ("outside", SERVER_STREAMING, "one wait", (DROPPED, None)),
            ("inside", SERVER_STREAMING, "one wait", (FAILURE, failed)),
        ] {
            let charged_layer = ChargedLayer::new(&world);
            let layer = charged_layer.layer.clone();
            let address = match by {
                "timeout" => serve_tonic(Server::builder().timeout(ms(50)), layer).await,
                "outside" => serve(router().layer(layer).layer(cuts())).await,
                _ => serve(router().layer(cuts()).layer(layer)).await,
            };
            let mut client = Client::connect(address).await;
            client.call(path, word).await.expect_err(by);
            assert_eq!(charged_layer.settled().await, settled, "{by}");
        }
    }
}
