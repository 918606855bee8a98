//! A network between a client and a server that can be made worse.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A TCP proxy before a server. It passes on what it gets, until one of its methods changes that, for
/// connections that are open and for those that come.
///
/// ```no_run
/// use tollgate_testkit::{Proxy, Server};
///
/// let server = Server::start();
/// let proxy = Proxy::to(server.addr());
/// let url = format!("redis://{}", proxy.addr());
/// proxy.hold();
/// // No client gets an answer there now.
/// proxy.pass();
/// ```
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// Both ends of each connection.
    open: Vec<(u64, [TcpStream; 2])>,
    next: u64,
    /// Bytes of requests that were passed on.
    forwarded: u64,
    /// Pieces of replies that are being delayed.
    delayed: usize,
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    /// Replies come later.
    Delay(Duration),
    /// Nothing gets through in either direction, and no error is reported.
    Hold,
    /// The same on the connections with a lower number.
    HoldBefore(u64),
    /// Connections are closed, also those that come.
    Cut,
    /// Half of a reply gets through, and then the connection is closed; the reply to a `PING` does.
    Halve,
    /// Before the next piece of a reply the one before it gets through again.
    Repeat,
}

/// What a client that checks a connection sends, and gets.
const CHECKS: [&[u8]; 2] = [b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"];

impl Proxy {
    /// A proxy before the server at `server`, on a port of its own.
    ///
    /// # Panics
    /// If there is no free port on 127.0.0.1.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("a port has a number");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                mode: Mode::Pass,
                open: Vec::new(),
                next: 0,
                forwarded: 0,
                delayed: 0,
                is_over: false,
            }),
            changed: Condvar::new(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.state().is_over {
                    return;
                }
                // The server is down: the client sees its connection closed.
                if let Ok(client) = client {
                    let _ = join(&accepting, client, server);
                }
            }
        });
        Self { addr, shared }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Passes everything on again, what was [held](Self::hold) first.
    pub fn pass(&self) {
        self.set(Mode::Pass);
    }

    /// Passes each piece of a reply on after a while.
    pub fn delay(&self, by: Duration) {
        self.set(Mode::Delay(by));
    }

    /// Accepts everything and forwards nothing, in either direction: a network that drops all packets.
    pub fn hold(&self) {
        self.set(Mode::Hold);
    }

    /// Does what [`hold`](Self::hold) does on the connections that are open now, and passes on what comes on others, and each
    /// `PING`: a client that checks a connection that was idle, as on a busy machine, takes it for well.
    pub fn hold_open(&self) {
        let next = self.shared.state().next;
        self.set(Mode::HoldBefore(next));
    }

    /// Closes all connections, and each that comes.
    pub fn cut(&self) {
        self.set(Mode::Cut);
        self.close_all();
    }

    /// Passes half of the next piece of a reply on, on each connection, and closes it then. The reply to a `PING` passes.
    pub fn halve(&self) {
        self.set(Mode::Halve);
    }

    /// Passes the last piece of a reply on again before the next one, on one connection, and everything as it is from then on.
    pub fn repeat(&self) {
        self.set(Mode::Repeat);
    }

    /// How many connections are open through it.
    pub fn connections(&self) -> usize {
        self.shared.state().open.len()
    }

    /// How many pieces of replies are being [delayed](Self::delay) now.
    pub fn delayed(&self) -> usize {
        self.shared.state().delayed
    }

    /// How many bytes of requests were sent on to the server, or are being sent, on all connections so far.
    pub fn forwarded(&self) -> u64 {
        self.shared.state().forwarded
    }

    fn set(&self, mode: Mode) {
        self.shared.state().mode = mode;
        self.shared.changed.notify_all();
    }

    fn close_all(&self) {
        for (_, ends) in &self.shared.state().open {
            ends.iter().for_each(close);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.cut();
        // So that it checks whether it is over.
        let _ = TcpStream::connect(self.addr);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of a piece of a connection, once it is no longer held.
    fn mode(&self, number: u64, piece: &[u8], replies: bool) -> Mode {
        let is_check = CHECKS.contains(&piece);
        let held = |state: &mut State| match state.mode {
            Mode::Hold => !state.is_over,
            Mode::HoldBefore(next) => number < next && !is_check && !state.is_over,
            _ => false,
        };
        let state = self.changed.wait_while(self.state(), held);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let mode = state.mode;
        if mode == Mode::Repeat && replies {
            state.mode = Mode::Pass;
        }
        if mode == Mode::Halve && is_check {
            return Mode::Pass;
        }
        mode
    }
}

fn join(shared: &Arc<Shared>, client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, from_server) = (client.try_clone()?, server.try_clone()?);
    let mut state = shared.state();
    if state.mode == Mode::Cut {
        return Ok(());
    }
    let number = state.next;
    state.next += 1;
    state
        .open
        .push((number, [client.try_clone()?, server.try_clone()?]));
    drop(state);
    let questions = shared.clone();
    thread::spawn(move || pump(&questions, number, from_client, server, false));
    let replies = shared.clone();
    thread::spawn(move || pump(&replies, number, from_server, client, true));
    Ok(())
}

/// Passes on what comes, until one end is closed; then both are.
fn pump(shared: &Shared, number: u64, mut from: TcpStream, mut to: TcpStream, replies: bool) {
    let (mut piece, mut last) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(len @ 1..) = from.read(&mut piece) {
        let (pass, ends) = match shared.mode(number, &piece[..len], replies) {
            Mode::Cut => (0, true),
            Mode::Halve if replies => (len / 2, true),
            Mode::Delay(by) if replies => {
                shared.state().delayed += 1;
                thread::sleep(by);
                shared.state().delayed -= 1;
                (len, false)
            }
            Mode::Repeat if replies => {
                if to.write_all(&last).is_err() {
                    break;
                }
                (len, false)
            }
            _ => (len, false),
        };
        last.clear();
        last.extend_from_slice(&piece[..pass]);
        // Counted before it is sent, so that who has the reply to it sees it counted.
        if !replies {
            shared.state().forwarded += pass as u64;
        }
        if to.write_all(&piece[..pass]).is_err() || ends {
            break;
        }
    }
    close(&from);
    close(&to);
    shared.state().open.retain(|(other, _)| *other != number);
}

fn close(end: &TcpStream) {
    // Fails only if it is closed already.
    let _ = end.shutdown(Shutdown::Both);
}
