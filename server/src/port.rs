//! A port: its connections are accepted, bounded in number, and encrypted.

use std::{
    fs, io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt, stream};
use http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, Sleep, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::{debug, error, warn};

use crate::serve::{BoxError, MAX_MESSAGE_BYTES};

/// How long no connection is accepted after the system refused one, as to a process with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection of HTTP/2 may take to send its preface, once it is encrypted. Until then it is neither tried by pings nor closed at
/// its age.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(30);

/// The length of the preface, in bytes.
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// How long a client may take to read what is written to it, before more of it can be written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an HTTP/1 connection may take to send the head of its next request. Longer than most intervals of scrapes.
const HTTP_IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// How long an HTTP/1 request may take to send its body, all in all.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after a warning that connections wait there is no other one.
const FULL_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A port that accepts connections.
#[derive(Debug)]
pub(crate) struct Port {
    name: &'static str,
    listener: TcpListener,
    max_connections: usize,
    permits: Arc<Semaphore>,
    /// When it was last logged that a connection has to wait.
    warned: Option<Instant>,
}

/// A connection of HTTP/2 that is closed unless it sends its preface in time.
#[derive(Debug)]
pub(crate) struct PrefaceTimeout<S> {
    stream: S,
    /// Until the preface has been read.
    preface: Option<Preface>,
}

#[derive(Debug)]
struct Preface {
    timeout: Pin<Box<Sleep>>,
    read: usize,
}

/// A connection that counts among those of its port.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// While nothing more can be written.
    write: Option<Pin<Box<Sleep>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Port {
    /// Listens on an address. `name` is for errors and the log.
    ///
    /// # Errors
    ///
    /// If the address can't be listened on.
    pub(crate) async fn open(
        name: &'static str,
        address: SocketAddr,
        max_connections: u32,
    ) -> Result<Self, BoxError> {
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.map_err(|error| format!("{name} can't listen on {address}: {error}"))?;
        let max_connections = (max_connections as usize).min(Semaphore::MAX_PERMITS);
        Ok(Self {
            name,
            listener,
            max_connections,
            permits: Arc::new(Semaphore::new(max_connections)),
            warned: None,
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. While there are as many as are allowed, it waits, and others in the system's queue.
    async fn accept(&mut self) -> Connection {
        let stream = loop {
            match self.listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    warn!(port = self.name, %error, "no connection accepted; trying again in a second");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        // Fails only if the connection has ended.
        let _ = stream.set_nodelay(true);
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                self.warn_that_connections_wait();
                // Fails only if the semaphore is closed, which it never is.
                self.permits.clone().acquire_owned().await.ok()
            }
        };
        Connection {
            stream,
            write: None,
            _permit: permit,
        }
    }

    fn warn_that_connections_wait(&mut self) {
        let is_recent = |warned: Instant| warned.elapsed() < FULL_WARNING_INTERVAL;
        if !self.warned.is_some_and(is_recent) {
            self.warned = Some(Instant::now());
            let max = self.max_connections;
            warn!(port = self.name, max, "too many connections: others wait");
        }
    }

    /// Its connections, as tonic serves them.
    pub(crate) fn connections(
        self,
    ) -> impl Stream<Item = io::Result<PrefaceTimeout<Connection>>> + Send {
        self.accepted()
            .map(|connection| Ok(PrefaceTimeout::new(connection)))
    }

    fn accepted(self) -> impl Stream<Item = Connection> + Send {
        stream::unfold(self, |mut port| async move {
            let connection = port.accept().await;
            Some((connection, port))
        })
    }

    /// Its connections, encrypted: each by the configuration that is in force when it begins.
    pub(crate) fn encrypted_connections(
        self,
        tls: watch::Receiver<Arc<ServerConfig>>,
    ) -> impl Stream<Item = io::Result<PrefaceTimeout<TlsStream<Connection>>>> + Send {
        let max_handshakes = self.max_connections;
        let handshakes = self.accepted().map(move |connection| {
            let acceptor = TlsAcceptor::from(tls.borrow().clone());
            // On any thread: a handshake computes for a millisecond.
            tokio::spawn(async move {
                let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(connection));
                handshake.await?
            })
        });
        let handshakes = handshakes.buffer_unordered(max_handshakes);
        handshakes.filter_map(async |handshake| match handshake {
            Ok(Ok(connection)) => Some(Ok(PrefaceTimeout::new(connection))),
            Ok(Err(error)) => {
                debug!(%error, "TLS handshake failed");
                None
            }
            // A panic, or the runtime is ending.
            Err(error) => {
                error!(%error, "TLS handshake stopped");
                None
            }
        })
    }

    /// Serves HTTP/1 until `end`, and then until the requests in flight are answered.
    pub(crate) async fn serve_http(mut self, router: Router, end: impl Future<Output = ()>) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HTTP_IDLE_TIMEOUT);
        let router = router.layer(middleware::from_fn(with_whole_body));
        let connections = GracefulShutdown::new();
        let mut end = std::pin::pin!(end);
        loop {
            let connection = tokio::select! {
                connection = self.accept() => TokioIo::new(connection),
                () = &mut end => break,
            };
            let service = TowerToHyperService::new(router.clone());
            let served = connections.watch(http.serve_connection(connection, service));
            tokio::spawn(async move {
                if let Err(error) = served.await {
                    debug!(%error, "HTTP connection failed");
                }
            });
        }
        // Closes the port.
        drop(self);
        connections.shutdown().await;
    }
}

/// Warns of a limit of open files that connections may reach: then no file with rules can be read, and Redis can't be connected to.
pub(crate) fn warn_of_open_files(connections: u64) {
    // There is no such file on other systems than Linux.
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(limit) = open_files(&limits).filter(|&limit| limit < connections) {
        warn!(
            limit,
            connections, "fewer open files are allowed than connections"
        );
    }
}

/// The limit of open files in `/proc/self/limits`; `None` if there is none.
fn open_files(limits: &str) -> Option<u64> {
    let mut lines = limits.lines();
    let limits = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    limits.split_whitespace().next()?.parse().ok()
}

/// Reads the body of a request before it is answered.
async fn with_whole_body(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match timeout(BODY_TIMEOUT, to_bytes(body, MAX_MESSAGE_BYTES)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, Body::from(body))).await,
        // Too large: of a connection that has failed nobody reads the answer.
        Ok(Err(error)) => (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).into_response(),
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// Whether an error is one of the connection that was to be accepted, and not of the process or the system.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: Connected> Connected for PrefaceTimeout<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S> PrefaceTimeout<S> {
    fn new(stream: S) -> Self {
        let preface = Preface {
            timeout: Box::pin(sleep(PREFACE_TIMEOUT)),
            read: 0,
        };
        Self {
            stream,
            preface: Some(preface),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefaceTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(preface) = &mut self.preface {
            preface.read += buf.filled().len() - before;
            if preface.read >= PREFACE_BYTES {
                self.preface = None;
            } else if read.is_pending() {
                ready!(preface.timeout.as_mut().poll(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefaceTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connection {
    /// What a write has returned, or an error if the client has read nothing for too long.
    fn in_time(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.write = None;
            return written;
        }
        let timeout = || Box::pin(sleep(WRITE_TIMEOUT));
        ready!(self.write.get_or_insert_with(timeout).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// On a clock that jumps to the next timer while nothing else is to be done.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_closed() {
        let address = ([127, 0, 0, 1], 0).into();
        let mut port = Port::open("test", address, 1).await.expect("a port");
        let address = port.address().expect("an address");
        let _client = TcpStream::connect(address).await.expect("a connection");
        let mut connection = port.accept().await;
        let start = Instant::now();
        // More than the system keeps for a client.
        let written = connection.write_all(&vec![0; 256 << 20]).await;
        assert_eq!(
            written.expect_err("an error").kind(),
            io::ErrorKind::TimedOut
        );
        assert!(start.elapsed() >= WRITE_TIMEOUT);
    }
}
