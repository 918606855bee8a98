//! A TCP link with latency: a proxy on threads of its own that delays the bytes in both directions.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// A proxy that passes bytes on a fixed time after they came, whatever else is under way: latency without a limit of bandwidth.
///
/// It listens until the process ends. A connection ends with either of its sides.
#[derive(Clone, Copy, Debug)]
pub struct DelayedLink {
    addr: SocketAddr,
}

/// Bytes, and when they are passed on.
type Chunk = (Instant, Vec<u8>);

/// The most that is read at once.
const MAX_CHUNK_BYTES: usize = 64 * 1024;

impl DelayedLink {
    /// A link to `server` that delays the bytes of each direction by `delay`.
    ///
    /// # Panics
    ///
    /// If there is no free port on 127.0.0.1.
    pub fn to(server: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("a port has a number");
        thread::spawn(move || {
            // Threads inherit it from the one that spawns them.
            reduce_timer_slack();
            for client in listener.incoming().flatten() {
                // Without a server the client sees its connection closed.
                let _ = forward(client, server, delay);
            }
        });
        Self { addr }
    }

    /// The URL of the server behind the link.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

/// Lets the sleeps of this thread end on time on Linux, where they last 50 µs longer by default. Elsewhere it changes nothing.
fn reduce_timer_slack() {
    let thread = fs::read_link("/proc/thread-self").unwrap_or_default();
    if let Some(id) = thread.file_name() {
        let file = std::path::Path::new("/proc").join(id).join("timerslack_ns");
        // The link is a little slower if this fails.
        let _ = fs::write(file, "1");
    }
}

fn forward(client: TcpStream, server: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for (from, to) in [(&client, &server), (&server, &client)] {
        to.set_nodelay(true)?;
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let (sender, receiver) = channel();
        thread::spawn(move || read_chunks(from, delay, &sender));
        thread::spawn(move || write_chunks(&receiver, to));
    }
    Ok(())
}

/// Reads until the connection or the other thread ends.
fn read_chunks(mut from: TcpStream, delay: Duration, sender: &Sender<Chunk>) {
    let mut bytes = vec![0; MAX_CHUNK_BYTES];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let due = Instant::now() + delay;
        if sender.send((due, bytes[..len].to_vec())).is_err() {
            break;
        }
    }
}

/// Writes each chunk when it is due, and closes the connection after the last.
fn write_chunks(receiver: &Receiver<Chunk>, mut to: TcpStream) {
    for (due, bytes) in receiver {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // Fails only if it is closed already.
    let _ = to.shutdown(Shutdown::Both);
}
