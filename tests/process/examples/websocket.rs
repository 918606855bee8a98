//! The example whose sockets and messages are limited.

use tollgate_tests::{
    example::{Example, Stage},
    prelude::*,
    websocket::{Message, Socket},
};

/// Opens a socket as soon as there is a permit, which another socket's end may make a moment later.
async fn opened(example: &Example) -> Socket {
    let mut socket = None;
    until("a permit", async || {
        socket = Socket::open(example.address(), "/").await.ok();
        socket.is_some()
    })
    .await;
    socket.expect("a socket")
}

/// Asserts that there is no permit for another socket.
async fn assert_full(example: &Example) {
    let rejected = Socket::open(example.address(), "/").await.err();
    assert_eq!(rejected, Some(429));
}

#[tokio::test]
async fn two_websocket_servers_on_one_redis_share_messages_and_the_permits_of_open_sockets() {
    let stage = Stage::on_redis();
    let examples = [(); 2].map(|()| stage.start("websocket", &[]));
    let mut sockets = [
        opened(&examples[0]).await,
        opened(&examples[1]).await,
        opened(&examples[0]).await,
    ];
    assert_full(&examples[1]).await;
    for n in 0..9 {
        let message = match n % 2 {
            0 => Message::text(format!("word {n}")),
            _ => Message::binary(vec![n as u8; 9]),
        };
        let response = sockets[n % 3].say(message.clone()).await;
        if n < 5 {
            assert_eq!(response, message);
        } else {
            let text = response.to_text().expect("a text");
            assert_eq!(text, r#"quota exceeded: "messages"; retry after 2s"#);
        }
    }
    stage.clock.advance(secs(2));
    let hello = Message::text("hello");
    assert_eq!(sockets[0].say(hello.clone()).await, hello);
    assert_ne!(sockets[1].say(hello.clone()).await, hello);
    // One that vanishes makes way for the next, and so does one that is shown out.
    let [vanishes, mut shown_out, _open] = sockets;
    drop(vanishes);
    let mut next = opened(&examples[1]).await;
    while !shown_out.say("word").await.is_close() {}
    let _last = opened(&examples[1]).await;
    next.assert_open().await;
    assert_full(&examples[0]).await;
    let mut keys = stage.server().keys();
    keys.retain(|key| key.contains("messages"));
    assert_eq!(keys, ["tg:g3:messages:127.0.0.1"]);
    assert_eq!(stage.server().immortal_keys(), [""; 0]);
}
