//! A gRPC service that executes the words of a request, with a codec of plain text in place of generated code.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use crate::sockets::support::*;
use bytes::{Buf, BufMut};
use futures_util::{Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};
use tonic::{
    CancellationHandle, Code, Request, Response, Status, Streaming,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{self, NamedService},
    service::Routes,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};

/// What no codec encodes.
const UNSPEAKABLE: &str = "\0";

/// Messages of plain text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        if text == UNSPEAKABLE {
            return Err(Status::internal("unspeakable"));
        }
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some)
            .map_err(|_| Status::invalid_argument("no text"))
    }
}

/// Executes one word: `fail:7` fails with code 7, `wait` waits for ever, `panic` panics, `mumble` responds with what
/// can't be encoded, so that the call fails when its head has been sent, `pause` lets earlier words be sent first, and
/// all others are echoed.
async fn obey(word: String) -> Result<String, Status> {
    if let Some(code) = word.strip_prefix("fail:") {
        return Err(Status::new(Code::from_bytes(code.as_bytes()), "as asked"));
    }
    match word.as_str() {
        "wait" => std::future::pending().await,
        // Not `panic!`, which would write to the test's output.
        "panic" => std::panic::resume_unwind(Box::new("as asked")),
        "mumble" => return Ok(UNSPEAKABLE.to_owned()),
        "pause" => tokio::task::yield_now().await,
        _ => {}
    }
    Ok(word)
}

async fn unary(request: Request<String>) -> Result<Response<String>, Status> {
    obey(request.into_inner()).await.map(Response::new)
}

type Words = Pin<Box<dyn Stream<Item = Result<String, Status>> + Send>>;

/// Executes each word in turn. After `at once`, one before there is a stream; at `flood` it sends more than the client
/// reads.
async fn server_streaming(request: Request<String>) -> Result<Response<Words>, Status> {
    let words = request.into_inner();
    if let Some(word) = words.strip_prefix("at once ") {
        obey(word.to_owned()).await?;
    }
    if words == "flood" {
        let flood = stream::repeat_with(|| Ok("word".repeat(1_000)));
        return Ok(Response::new(flood.boxed()));
    }
    let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
    Ok(Response::new(stream::iter(words).then(obey).boxed()))
}

/// Executes each word as it comes, and responds with all of them.
async fn client_streaming(request: Request<Streaming<String>>) -> Result<Response<String>, Status> {
    let mut words = request.into_inner();
    let mut responses = Vec::new();
    while let Some(word) = words.message().await? {
        responses.push(obey(word).await?);
    }
    Ok(Response::new(responses.join(" ")))
}

/// Executes each word as it comes, and responds to each.
async fn bidi(request: Request<Streaming<String>>) -> Result<Response<Words>, Status> {
    let words = request.into_inner();
    let responses = words.then(async |word| obey(word?).await);
    Ok(Response::new(responses.boxed()))
}

/// What a code generator would have written around them.
#[derive(Clone, Debug)]
pub(crate) struct Calls;

impl NamedService for Calls {
    const NAME: &'static str = "test.Calls";
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut grpc = server::Grpc::new(Text);
        Box::pin(async move {
            Ok(match request.uri().path() {
                UNARY => grpc.unary(service_fn(unary), request).await,
                SERVER_STREAMING => {
                    grpc.server_streaming(service_fn(server_streaming), request)
                        .await
                }
                CLIENT_STREAMING => {
                    grpc.client_streaming(service_fn(client_streaming), request)
                        .await
                }
                BIDI => grpc.streaming(service_fn(bidi), request).await,
                path => Status::unimplemented(path).into_http(),
            })
        })
    }
}

pub(crate) const UNARY: &str = "/test.Calls/Unary";
pub(crate) const SERVER_STREAMING: &str = "/test.Calls/ServerStreaming";
pub(crate) const CLIENT_STREAMING: &str = "/test.Calls/ClientStreaming";
pub(crate) const BIDI: &str = "/test.Calls/Bidi";

/// The server that serves it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Host {
    /// tonic's own server, with the layer around all its services.
    Tonic,
    /// An axum router, with the layer around it.
    Axum,
}

impl Host {
    pub(crate) const ALL: [Self; 2] = [Self::Tonic, Self::Axum];

    pub(crate) fn on_both_stores() -> impl Iterator<Item = (Self, World)> {
        let on_both = |host| World::both().map(move |world| (host, world));
        Self::ALL.into_iter().flat_map(on_both)
    }

    pub(crate) async fn serve(self, layer: RateLimitLayer) -> SocketAddr {
        match self {
            Self::Tonic => serve_tonic(Server::builder(), layer).await,
            Self::Axum => serve(router().layer(layer)).await,
        }
    }
}

pub(crate) async fn serve_tonic(server: Server, layer: RateLimitLayer) -> SocketAddr {
    let (listener, address) = listen().await;
    let server = server.layer(layer).add_service(Calls);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// A server of these policies, and a client of it.
pub(crate) async fn client_of(host: Host, limiter: &Limiter) -> Client {
    Client::connect(host.serve(RateLimitLayer::new(limiter.clone())).await).await
}

/// The service in an axum router, without a layer.
pub(crate) fn router() -> Router {
    Routes::new(Calls).into_axum_router()
}

pub(crate) async fn serve(router: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let channel = endpoint.expect("an address").connect().await;
    channel.expect("a server")
}

#[derive(Clone, Debug)]
pub(crate) struct Client(client::Grpc<Channel>);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::of(channel(address).await)
    }

    pub(crate) fn of(channel: Channel) -> Self {
        Self(client::Grpc::new(channel))
    }

    /// Calls a method of any kind: on the wire each is a stream of messages in both directions.
    pub(crate) async fn open<S>(
        &mut self,
        path: &'static str,
        mut request: Request<S>,
    ) -> Result<ResponseStream, Status>
    where
        S: Stream<Item = String> + Send + 'static,
    {
        self.0.ready().await.expect("a connection");
        let cancel = request.cancellation_handle();
        let path = PathAndQuery::from_static(path);
        let response = self.0.streaming(request, path, Text).await?;
        Ok(ResponseStream {
            stream: response.into_inner(),
            cancel,
        })
    }

    /// Sends one message, and returns all that the call responds.
    pub(crate) async fn call(&mut self, path: &'static str, word: &str) -> Result<String, Status> {
        let mut responses = self.open(path, one(word)).await?;
        let mut said = Vec::new();
        while let Some(word) = responses.next().await? {
            said.push(word);
        }
        Ok(said.join(" "))
    }

    pub(crate) async fn unary(&mut self, word: &str) -> Result<String, Status> {
        self.call(UNARY, word).await
    }
}

/// A request of one message.
pub(crate) fn one(word: &str) -> Request<impl Stream<Item = String> + Send + 'static> {
    Request::new(stream::iter([word.to_owned()]))
}

/// The messages of a stream.
#[derive(Debug)]
pub(crate) struct ResponseStream {
    stream: Streaming<String>,
    /// Without it, tonic goes on sending the client's messages.
    cancel: CancellationHandle,
}

impl ResponseStream {
    /// The next; `None` at the end of a call that succeeded.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Status> {
        self.stream.message().await
    }

    /// Asserts that there is a next message, and what it says.
    pub(crate) async fn expect_next(&mut self, message: &str) {
        let next = self.next().await.expect("a response");
        assert_eq!(next.as_deref(), Some(message));
    }

    /// Cancels the call.
    pub(crate) fn cancel(self) {
        self.cancel.cancel();
    }

    /// All that are yet to come, and the code of the call.
    pub(crate) async fn rest(mut self) -> (Vec<String>, Code) {
        let mut responses = Vec::new();
        loop {
            match self.next().await {
                Ok(Some(response)) => responses.push(response),
                Ok(None) => return (responses, Code::Ok),
                Err(status) => return (responses, status.code()),
            }
        }
    }
}

/// A client's messages, word by word; they end when the sender is dropped.
pub(crate) fn word_channel() -> (
    mpsc::UnboundedSender<String>,
    impl Stream<Item = String> + Send + 'static,
) {
    let (say, mut word_channel) = mpsc::unbounded_channel();
    (say, stream::poll_fn(move |cx| word_channel.poll_recv(cx)))
}

/// A way to the server that can be cut: what is returned must be aborted, and both ends are closed at once.
pub(crate) async fn cable(to: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let (listener, address) = listen().await;
    let cable = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.expect("a client");
        let mut server = TcpStream::connect(to).await.expect("a server");
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    (address, cable)
}

/// Whether the layer rejected it. tonic's client would make UNAVAILABLE of a bare 429.
pub(crate) fn is_rejection(status: &Status) -> bool {
    let has_pushback = status.metadata().contains_key("grpc-retry-pushback-ms");
    status.code() == Code::ResourceExhausted && has_pushback
}
