//! Five hundred requests over real connections, of all the kinds that end badly.

use axum::extract::{Path, State};
use futures_util::stream;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{sleep, timeout},
};
use tollgate_tests::prelude::*;
use tower_http::timeout::TimeoutLayer;

use crate::inflight::support::*;

const REQUESTS: usize = 500;
const CLIENTS: usize = 25;

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// A plain response.
    Plain,
    /// The handler panics.
    Panic,
    /// The client hangs up while the handler works.
    HangUp,
    /// The client hangs up in the middle of a stream.
    HangUpInStream,
    /// The response streams.
    Stream,
    /// A timeout outside of the limit gives it up.
    Timeout,
}

impl Kind {
    const OFTEN: [Self; 5] = [
        Self::Plain,
        Self::Panic,
        Self::HangUp,
        Self::HangUpInStream,
        Self::Timeout,
    ];

    fn of(request: usize) -> Self {
        match request % 20 {
            7 => Self::Stream,
            _ => Self::OFTEN[(request + request / 20) % Self::OFTEN.len()],
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Plain => "/plain",
            Self::Panic => "/panic",
            Self::HangUp => "/endless",
            Self::HangUpInStream => "/endless-stream",
            Self::Stream => "/stream",
            Self::Timeout => "/timeout/endless",
        }
    }
}

/// What is at work, by a count of the test's own.
#[derive(Debug, Default)]
struct Work {
    now: AtomicUsize,
    most: AtomicUsize,
    ran: Mutex<HashSet<usize>>,
    /// Whether streams go on although all of their bytes are sent.
    hold_streams: AtomicBool,
}

/// One at work, until it is dropped.
#[derive(Debug)]
struct AtWork(Arc<Work>);

impl Work {
    fn begin(self: &Arc<Self>, request: usize) -> AtWork {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        assert!(self.ran.lock().expect("no panic").insert(request));
        AtWork(self.clone())
    }

    async fn until_run(&self, request: usize) {
        while !self.ran.lock().expect("no panic").contains(&request) {
            sleep(ms(1)).await;
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of this many bytes, one at a time, and of more while streams are held.
fn trickle(bytes: usize, at_work: AtWork) -> Body {
    Body::from_stream(stream::unfold((bytes, at_work), async |(left, at_work)| {
        if left == 0 && !at_work.0.hold_streams.load(Ordering::SeqCst) {
            return None;
        }
        sleep(ms(5)).await;
        Some((Ok::<_, Infallible>("."), (left.saturating_sub(1), at_work)))
    }))
}

async fn handle(
    State(work): State<Arc<Work>>,
    Path((kind, request)): Path<(String, usize)>,
) -> Body {
    let at_work = work.begin(request);
    match kind.as_str() {
        "plain" => {
            sleep(ms(3)).await;
            Body::from("plain")
        }
        "panic" => {
            tokio::task::yield_now().await;
            // Not `panic!`, which would write to the test's output some hundred times.
            std::panic::resume_unwind(Box::new("as planned"))
        }
        "endless" => std::future::pending().await,
        "stream" => trickle(4, at_work),
        _ => trickle(usize::MAX, at_work),
    }
}

/// Serves these requests on a port.
async fn serve(limiter: &Limiter, work: &Arc<Work>) -> (SocketAddr, AbortHandle) {
    let limited = Router::new()
        .route("/{kind}/{request}", get(handle))
        .layer(RateLimitLayer::new(limiter.clone()));
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, ms(200));
    let app = limited.clone().nest("/timeout", limited.layer(timeout));
    let app = app.with_state(work.clone());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    (address, server.abort_handle())
}

/// What a client received.
#[derive(Debug)]
enum Saw {
    Status(u16, Vec<u8>),
    /// The server closed the connection without a word.
    Nothing,
    /// It hung up itself, while it had been admitted.
    HungUp,
}

/// Sends a request, and ends it as its kind says.
async fn send(address: SocketAddr, kind: Kind, request: usize, work: &Work) -> Saw {
    let mut connection = TcpStream::connect(address).await.expect("a connection");
    let path = format!("{}/{request}", kind.path());
    let head = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    let sent = connection.write_all(head.as_bytes()).await;
    sent.expect("a request");
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        tokio::select! {
            read = connection.read(&mut piece) => match read {
                Ok(0) | Err(_) => break,
                Ok(n) => response.extend_from_slice(&piece[..n]),
            },
            // It hangs up when the handler is at work for it.
            () = work.until_run(request), if kind == Kind::HangUp => {
                return Saw::HungUp;
            }
        }
        if kind == Kind::HangUpInStream && response.ends_with(b"\r\n1\r\n.\r\n") {
            return Saw::HungUp;
        }
    }
    let status = response.get(9..12).map(String::from_utf8_lossy);
    match status.and_then(|status| status.parse().ok()) {
        Some(status) => Saw::Status(status, response),
        None => Saw::Nothing,
    }
}

/// Whether it ended as its kind does; false if it was rejected.
#[track_caller]
fn admitted(kind: Kind, saw: &Saw) -> bool {
    match (kind, saw) {
        (_, Saw::Status(429, _)) => return false,
        (Kind::Plain, Saw::Status(200, _))
        | (Kind::Panic, Saw::Nothing)
        | (Kind::HangUp | Kind::HangUpInStream, Saw::HungUp)
        | (Kind::Timeout, Saw::Status(504, _)) => {}
        (Kind::Stream, Saw::Status(200, response)) if response.ends_with(b"0\r\n\r\n") => {}
        _ => panic!("{kind:?} ended in {saw:?}"),
    }
    true
}

/// Sends requests until there are enough of all clients; returns which were admitted and which were rejected.
async fn send_all(
    address: SocketAddr,
    work: Arc<Work>,
    tickets: Arc<AtomicUsize>,
) -> Vec<(usize, Kind, bool)> {
    let mut sent = Vec::new();
    loop {
        let request = tickets.fetch_add(1, Ordering::SeqCst);
        if request >= REQUESTS {
            return sent;
        }
        let kind = Kind::of(request);
        let saw = timeout(TEST_TIMEOUT, send(address, kind, request, &work)).await;
        let is_admitted = admitted(kind, &saw.expect("it ends"));
        sent.push((request, kind, is_admitted));
        if !is_admitted {
            // It retries no sooner than another request may be over.
            sleep(ms(10)).await;
        }
    }
}

async fn five_hundred_requests(limiter: Limiter) {
    let work = Arc::new(Work::default());
    let (address, server) = serve(&limiter, &work).await;
    // Streams last until all permits are taken, so that it comes to that on any machine.
    work.hold_streams.store(true, Ordering::SeqCst);
    let most = || work.most.load(Ordering::SeqCst);
    let tickets = Arc::default();
    let clients = (0..CLIENTS).map(|_| send_all(address, work.clone(), Arc::clone(&tickets)));
    let clients: JoinSet<_> = clients.collect();
    let permits = MAX_PERMITS as usize;
    until("all are taken", async || most() >= permits).await;
    work.hold_streams.store(false, Ordering::SeqCst);
    let sent = clients.join_all().await.concat();
    until_free(&limiter, MAX_PERMITS).await;

    assert_eq!(most(), permits, "at work at once");
    assert_eq!(sent.len(), REQUESTS);
    let ran = work.ran.lock().expect("no panic");
    for (request, kind, is_admitted) in &sent {
        // The time may have been up before the store's result came.
        let may_differ = *is_admitted && *kind == Kind::Timeout;
        assert!(
            may_differ || ran.contains(request) == *is_admitted,
            "{kind:?}"
        );
    }
    let admitted = sent.iter().filter(|(_, _, is_admitted)| *is_admitted);
    let kinds: HashSet<_> = admitted.map(|(_, kind, _)| kind).collect();
    assert_eq!(
        kinds.len(),
        6,
        "of every kind some were admitted: {kinds:?}"
    );
    assert_eq!(work.now.load(Ordering::SeqCst), 0);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_ten_holds_under_five_hundred_requests() {
    let in_process = Limiter::builder().store(MemoryStore::new());
    five_hundred_requests(build(in_process, [permit_policy(LONG_TTL)])).await;
    let server = Server::start();
    let on_redis = Limiter::builder().store(store(server.url()));
    five_hundred_requests(build(on_redis, [permit_policy(LONG_TTL)])).await;
    assert_eq!(server.keys(), [""; 0]);
}

/// The clock passes several TTLs while the streams last.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_outlast_the_ttl_of_their_permits_keep_them_to_the_end() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        let work = Arc::new(Work::default());
        work.hold_streams.store(true, Ordering::SeqCst);
        let (address, server) = serve(&limiter, &work).await;
        let streams = (0..MAX_PERMITS as usize).map(|request| {
            let work = work.clone();
            async move { send(address, Kind::Stream, request, &work).await }
        });
        let streams: JoinSet<_> = streams.collect();
        until("all streams are at work", async || {
            work.now.load(Ordering::SeqCst) == MAX_PERMITS as usize
        })
        .await;
        for _ in 0..3 {
            world.advance(PERMIT_TTL * 9 / 10);
            until_heartbeats(&world, MAX_PERMITS).await;
            assert!(!admitted_by_store(&admit(&limiter).await));
        }
        work.hold_streams.store(false, Ordering::SeqCst);
        for saw in streams.join_all().await {
            assert!(admitted(Kind::Stream, &saw));
        }
        until_free(&limiter, MAX_PERMITS).await;
        server.abort();
    }
}
