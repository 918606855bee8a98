//! A port: its connections are accepted, bounded in number, and encrypted.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::Router;
use futures_util::{Stream, StreamExt, stream};
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
    time::{Sleep, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::{debug, warn};

use crate::serve::BoxError;

/// How long no connection is accepted after the system refused one, as to a process with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may take to send its first byte. HTTP/2 has no such bound, not even on its handshake.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an HTTP/1 connection may take to send the head of its next request. Longer than most intervals of scrapes.
const HTTP_IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// A port that accepts connections.
#[derive(Debug)]
pub(crate) struct Port {
    name: &'static str,
    listener: TcpListener,
    max_connections: usize,
    permits: Arc<Semaphore>,
    /// Whether the last connection had to wait, which is logged once.
    is_full: AtomicBool,
}

/// A connection that counts among those of its port.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// Until something has been read.
    first_byte: Option<Pin<Box<Sleep>>>,
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
            is_full: AtomicBool::new(false),
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. While there are as many as are allowed, others wait in the system's queue.
    async fn accept(&self) -> Connection {
        let permit = self.permits.clone().try_acquire_owned();
        let was_full = self.is_full.swap(permit.is_err(), Ordering::Relaxed);
        if permit.is_err() && !was_full {
            let max = self.max_connections;
            warn!(port = self.name, max, "too many connections: others wait");
        }
        let permit = match permit {
            Ok(permit) => Some(permit),
            // Fails only if the semaphore is closed, which it never is.
            Err(_) => self.permits.clone().acquire_owned().await.ok(),
        };
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    // Fails only if the connection has ended.
                    let _ = stream.set_nodelay(true);
                    return Connection {
                        stream,
                        first_byte: Some(Box::pin(sleep(FIRST_BYTE_TIMEOUT))),
                        _permit: permit,
                    };
                }
                Err(error) if is_of_connection(&error) => {}
                Err(error) => {
                    warn!(port = self.name, %error, "no connection accepted; trying again in a second");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Its connections, as tonic serves them.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        stream::unfold(self, |port| async move {
            let connection = port.accept().await;
            Some((Ok(connection), port))
        })
    }

    /// Its connections, encrypted: each by the configuration that is in force when it begins.
    pub(crate) fn encrypted_connections(
        self,
        tls: watch::Receiver<Arc<ServerConfig>>,
    ) -> impl Stream<Item = io::Result<TlsStream<Connection>>> + Send {
        let max_handshakes = self.max_connections;
        let handshakes = self.connections().map(move |connection| {
            let acceptor = TlsAcceptor::from(tls.borrow().clone());
            // On any thread: a handshake computes for a millisecond.
            tokio::spawn(async move {
                let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(connection?));
                handshake.await?
            })
        });
        let handshakes = handshakes.buffer_unordered(max_handshakes);
        handshakes.filter_map(async |handshake| match handshake {
            Ok(Ok(connection)) => Some(Ok(connection)),
            Ok(Err(error)) => {
                debug!(%error, "TLS handshake failed");
                None
            }
            // The runtime is ending.
            Err(_) => None,
        })
    }

    /// Serves HTTP/1 until `end`, and then until the requests in flight are answered.
    pub(crate) async fn serve_http(self, router: Router, end: impl Future<Output = ()>) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HTTP_IDLE_TIMEOUT);
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

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &mut self.first_byte {
            Some(timeout) if read.is_pending() => {
                ready!(timeout.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            _ => {
                self.first_byte = None;
                read
            }
        }
    }
}

impl AsyncWrite for Connection {
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
