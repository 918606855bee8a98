//! The list of examples: each section starts one, and calls it.

use futures_util::{SinkExt, StreamExt};
use testkit::Timers;
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{client_async, tungstenite::Message};
use tollgate_tests::until::TEST_TIMEOUT;

use crate::printed::{page::Page, session::Session};

/// The examples whose handlers wait for time to pass.
const WAITING: [&str; 5] = ["axum_full", "llm_tokens", "login", "ocr", "outgoing"];

pub(crate) fn run(page: &mut Page) {
    let mut session = None;
    let mut section = String::new();
    while let Some(block) = page.next() {
        if section != block.section {
            section.clone_from(&block.section);
            let timers = match WAITING.contains(&&*section) {
                true => Timers::Advance,
                false => Timers::Stopped,
            };
            session = Some(Session::start(timers));
        }
        let session = session.as_mut().expect("a section");
        match (&*section, &*block.language) {
            ("websocket", "text") => {
                let messages = websocket(session.real_port(3000), 11);
                page.compare(&block, &messages.join("\n"));
            }
            (_, "text") => session.log(page, &block),
            _ => session.run(page, &block),
        }
    }
}

/// Sends `hello` so many times to a WebSocket, and returns the answers until it is closed.
fn websocket(port: u16, count: usize) -> Vec<String> {
    let session = async {
        let address = ("127.0.0.1", port);
        let stream = TcpStream::connect(address).await.expect("a server");
        let url = format!("ws://127.0.0.1:{port}/");
        let (mut socket, _) = client_async(url, stream).await.expect("a socket");
        let mut answers = Vec::new();
        for _ in 0..count {
            socket
                .send(Message::text("hello"))
                .await
                .expect("it is open");
            match socket.next().await.expect("an answer").expect("a message") {
                Message::Text(text) => answers.push(text.to_string()),
                Message::Close(Some(close)) => {
                    assert_eq!(u16::from(close.code), 1008);
                    return answers;
                }
                other => panic!("neither text nor its end: {other:?}"),
            }
        }
        panic!("it is not closed: {answers:?}");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async { timeout(TEST_TIMEOUT, session).await.expect("in time") })
}
