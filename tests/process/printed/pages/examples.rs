//! The list of examples: each section starts one, and calls it.

use tollgate_tests::{
    prelude::*,
    websocket::{Message, Socket},
};

use crate::printed::{page::Page, session::Session};

/// The examples whose handlers wait for time to pass.
const WAITING: [&str; 4] = ["axum_full", "llm_tokens", "ocr", "outgoing"];

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
                let messages = websocket(session.real_port(3000));
                page.compare(&block, &messages.join("\n"));
            }
            (_, "text") => session.log(page, &block),
            _ => session.run(page, &block),
        }
    }
}

/// Sends `hello` to a WebSocket again and again, and returns the answers until it is closed.
fn websocket(port: u16) -> Vec<String> {
    let session = async {
        let address = ([127, 0, 0, 1], port).into();
        let mut socket = Socket::open(address, "/").await.expect("a socket");
        let mut answers = Vec::new();
        loop {
            match socket.say("hello").await {
                Message::Text(text) => answers.push(text.to_string()),
                Message::Close(Some(close)) => {
                    assert_eq!(u16::from(close.code), 1008);
                    return answers;
                }
                other => panic!("neither text nor its end: {other:?}"),
            }
        }
    };
    current_thread().block_on(session)
}
