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
async fn websocket_has_three_permits_that_sockets_hold_until_they_close() {
    let example = Stage::in_process().start("websocket", &[]);
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(opened(&example).await);
    }
    for _ in 0..2 {
        // Each socket is open, and so there is no permit.
        for socket in &mut sockets {
            socket.assert_open().await;
        }
        assert_full(&example).await;
        // One that vanishes makes way for the next.
        drop(sockets.remove(0));
        sockets.push(opened(&example).await);
    }
    // So does one that is shown out.
    let mut shown_out = sockets.remove(0);
    let mut words = 0;
    while !shown_out.say("word").await.is_close() {
        words += 1;
        assert!(words < 100, "it is let stay");
    }
    sockets.push(opened(&example).await);
}

#[tokio::test]
async fn two_websocket_servers_on_one_redis_share_messages_and_permits() {
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
    let mut keys = stage.server().keys();
    keys.retain(|key| key.contains("messages"));
    assert_eq!(keys, ["tg:g3:messages:127.0.0.1"]);
    assert_eq!(stage.server().immortal_keys(), [""; 0]);
}
