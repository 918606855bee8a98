//! gRPC's well-known greeter: five greetings in any ten seconds for each peer, call by call or within a stream, all
//! together. In process; on Redis, for any number of processes, if `REDIS_URL` is set.
//!
//! ```text
//! cargo run --example tonic_greeter --features tonic
//! ```

use std::{env, error::Error, pin::Pin, time::Duration};

use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio::net::TcpListener;
use tollgate::{Key, Limiter, Policy, Quota, RateLimitLayer, SlidingLog};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

#[allow(unreachable_pub)]
mod helloworld;

use helloworld::{
    HelloReply, HelloRequest,
    greeter_server::{Greeter, GreeterServer},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let layer = layer()?;
    let limiter = layer.limiter().clone();

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("Listening on http://{address}. Five greetings pass in ten seconds; try six:\n");
    println!(
        "  for i in $(seq 6); do grpcurl -plaintext -proto examples/helloworld/helloworld.proto \
         -d '{{\"name\": \"world\"}}' {address} helloworld.Greeter/SayHello; done"
    );
    Server::builder()
        .layer(layer)
        .add_service(GreeterServer::new(Host { limiter }))
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            stop_signal(),
        )
        .await?;
    Ok(())
}

/// Completes at Ctrl-C, and at SIGTERM, by which containers are stopped.
async fn stop_signal() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut signals = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
        signals.recv().await;
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

fn layer() -> Result<RateLimitLayer, Box<dyn Error>> {
    let quota = Quota::requests(5).per(Duration::from_secs(10));
    let greetings = Policy::new("greetings", quota)
        // Never more than five, whichever ten seconds one looks at.
        .strategy(SlidingLog)
        // Of a stream it's the messages that count.
        .skip_path("/helloworld.Greeter/SayHelloBidiStream");
    let layer = RateLimitLayer::builder().policy(greetings);
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    println!("Counting in process; set REDIS_URL to count on Redis.");
    Ok(layer.build()?)
}

/// Greets, and counts the messages of streams by the layer's own limiter.
struct Host {
    limiter: Limiter,
}

#[tonic::async_trait]
impl Greeter for Host {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(greet(&request.into_inner())))
    }

    type SayHelloBidiStreamStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn say_hello_bidi_stream(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Self::SayHelloBidiStreamStream>, Status> {
        let peer = request.remote_addr();
        let peer = peer.ok_or_else(|| Status::internal("a peer without an address"))?;
        // The key that the layer counts a call by, too.
        let key = Key::ip(peer.ip());
        let limiter = self.limiter.clone();
        let replies = request.into_inner().and_then(move |message| {
            // By name: the policy applies here, though it skips the stream's path.
            let admit = limiter.admit([("greetings", key)]);
            async move {
                // The first rejection ends the stream, with the status that a call would get.
                let _admission = admit.await?;
                Ok(greet(&message))
            }
        });
        Ok(Response::new(replies.boxed()))
    }
}

fn greet(request: &HelloRequest) -> HelloReply {
    HelloReply {
        message: format!("Hello {}", request.name),
    }
}
