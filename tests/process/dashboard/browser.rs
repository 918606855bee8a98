//! A browser, driven over the DevTools protocol as a user would: by keys, clicks and looks.

use std::net::Ipv4Addr;

use futures_util::{SinkExt, StreamExt};
use testkit::Program;
use tokio::{net::TcpStream, time::Instant};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};
use tollgate_tests::{chromium, plain_http, prelude::*};

/// A browser with one page, and what it has reported since the page was opened.
pub(crate) struct Browser {
    socket: WebSocketStream<TcpStream>,
    commands: u64,
    events: Vec<Value>,
    _program: Program,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let switches = ["--hide-scrollbars", "--remote-debugging-port=0"];
        let program = chromium::start("about:blank", &switches);
        let port = devtools_port(program.folder()).await;
        let target = page_target(port).await;
        let mut browser = Self {
            socket: connect(port, &format!("/devtools/page/{target}")).await,
            commands: 0,
            events: Vec::new(),
            _program: program,
        };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser
                .command(&format!("{domain}.enable"), json!({}))
                .await;
        }
        browser
    }

    /// Sends a command, and returns its result.
    pub(crate) async fn command(&mut self, method: &str, params: Value) -> Value {
        self.commands += 1;
        let id = self.commands;
        send(&mut self.socket, id, method, params).await;
        loop {
            let message = receive(&mut self.socket).await;
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    pub(crate) async fn open(&mut self, url: &str) {
        self.events.clear();
        self.command("Page.navigate", json!({ "url": url })).await;
        self.until("document.readyState === 'complete' && !!document.activeElement?.id")
            .await;
    }

    /// The value of a JavaScript expression in the page.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.command("Runtime.evaluate", params).await;
        let failure = &result["exceptionDetails"];
        assert!(failure.is_null(), "{expression}: {failure}");
        result["result"]["value"].clone()
    }

    /// The text that an element shows.
    pub(crate) async fn text(&mut self, selector: &str) -> String {
        let shown = format!("document.querySelector({selector:?})?.innerText ?? ''");
        let shown = self.value(&shown).await;
        shown.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression).await != true {
            if start.elapsed() > TEST_TIMEOUT {
                let page = self.value("document.body.innerText").await;
                panic!("not within {TEST_TIMEOUT:?}: {expression}; the page shows {page}");
            }
            tokio::time::sleep(ms(20)).await;
        }
    }

    /// Waits until an element shows a text.
    pub(crate) async fn until_shows(&mut self, selector: &str, text: &str) {
        let shows =
            format!("document.querySelector({selector:?})?.innerText.includes({text:?}) ?? false");
        self.until(&shows).await;
    }

    /// Waits until an element's text begins with a number.
    pub(crate) async fn until_count(&mut self, selector: &str, number: u64) {
        let text = format!("document.querySelector({selector:?}).innerText.replaceAll(',', '')");
        self.until(&format!("parseInt({text}) === {number}")).await;
    }

    /// Clicks the first element with that text among those of a selector, where it can be seen and nothing covers it.
    pub(crate) async fn click(&mut self, selector: &str, text: &str) {
        let clicks = format!(
            "(() => {{
                const nodes = [...document.querySelectorAll({selector:?})];
                const node = nodes.find((node) => node.innerText.trim() === {text:?});
                node?.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                const {{ x, y, width, height }} = node?.getBoundingClientRect() ?? {{}};
                const isOnTop = width > 0 && node.contains(document.elementFromPoint(x + width / 2, y + height / 2));
                if (isOnTop) node.click();
                return isOnTop;
            }})()"
        );
        self.until(&clicks).await;
    }

    /// Types into the element that has the focus.
    pub(crate) async fn type_text(&mut self, text: &str) {
        self.command("Input.insertText", json!({ "text": text }))
            .await;
    }

    /// Presses and releases a key.
    pub(crate) async fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, Some("\r")),
            "Escape" => (27, None),
            other => panic!("no such key here: {other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut params =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if let Some(text) = text.filter(|_| kind == "keyDown") {
                params["text"] = json!(text);
            }
            self.command("Input.dispatchKeyEvent", params).await;
        }
    }

    /// Moves the focus to a control, and replaces its text.
    pub(crate) async fn fill(&mut self, selector: &str, text: &str) {
        self.value(&format!("document.querySelector({selector:?}).select()"))
            .await;
        self.type_text(text).await;
    }

    pub(crate) async fn emulate(&mut self, theme: &str, width: u32, height: u32) {
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.command(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        )
        .await;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.command("Emulation.setDeviceMetricsOverride", metrics)
            .await;
    }

    /// The requests since the page was opened: their URLs.
    pub(crate) fn requested(&self) -> Vec<String> {
        let requests = self.events.iter();
        let requests = requests.filter(|event| event["method"] == "Network.requestWillBeSent");
        requests
            .filter_map(|event| event["params"]["request"]["url"].as_str())
            .map(str::to_owned)
            .collect()
    }

    /// Errors and warnings on the console since the page was opened, and exceptions.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let complains = |event: &&Value| {
            let params = &event["params"];
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Runtime.consoleAPICalled") => params["type"] != "log",
                Some("Log.entryAdded") => params["entry"]["level"] != "verbose",
                _ => false,
            }
        };
        let complaints = self.events.iter().filter(complains);
        complaints
            .map(|event| event["params"].to_string())
            .collect()
    }
}

/// The port that the browser listens on; it writes it into its profile.
async fn devtools_port(profile: &Path) -> u16 {
    let mut port = None;
    until("the browser has started", async || {
        let text = fs::read_to_string(profile.join("DevToolsActivePort")).unwrap_or_default();
        // The second line is written after the first one.
        let lines = text.split_once('\n').filter(|(_, path)| !path.is_empty());
        port = lines.map(|(port, _)| port.parse().expect("a port"));
        port.is_some()
    })
    .await;
    port.expect("a port")
}

/// The page that the browser has opened.
async fn page_target(port: u16) -> String {
    let list = format!("http://127.0.0.1:{port}/json/list");
    let mut id = None;
    until("the browser has a page", async || {
        let list = plain_http::client().get(&list).send().await;
        let list = list.expect("a response").text().await.expect("a body");
        let list: Vec<Value> = serde_json::from_str(&list).expect("JSON");
        let page = list.iter().find(|target| target["type"] == "page");
        id = page.and_then(|page| page["id"].as_str().map(str::to_owned));
        id.is_some()
    })
    .await;
    id.expect("a page")
}

async fn connect(port: u16, path: &str) -> WebSocketStream<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
    let url = format!("ws://127.0.0.1:{port}{path}");
    let socket = client_async(url, stream.expect("a connection")).await;
    socket.expect("a WebSocket").0
}

async fn send(socket: &mut WebSocketStream<TcpStream>, id: u64, method: &str, params: Value) {
    let command = json!({ "id": id, "method": method, "params": params });
    let sent = socket.send(Message::text(command.to_string())).await;
    sent.expect("the browser listens");
}

async fn receive(socket: &mut WebSocketStream<TcpStream>) -> Value {
    loop {
        let message = tokio::time::timeout(TEST_TIMEOUT, socket.next()).await;
        let message = message.expect("a message in time").expect("a message");
        if let Message::Text(text) = message.expect("no failure") {
            return serde_json::from_str(&text).expect("JSON");
        }
    }
}
