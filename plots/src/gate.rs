//! A network whose replies arrive when they are let through, one by one.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::Result;

/// More replies than there ever are.
const ALL: usize = Semaphore::MAX_PERMITS / 2;

/// A TCP proxy before a server: requests reach the server at once, replies wait while the gate is closed. A reply is what the
/// server writes at once. It runs on the runtime of the program that is observed.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) addr: SocketAddr,
    passes: Arc<Semaphore>,
    replies: Arc<AtomicUsize>,
}

impl Gate {
    /// An open gate before `server`.
    pub(crate) async fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let gate = Self {
            addr: listener.local_addr()?,
            passes: Arc::new(Semaphore::new(ALL)),
            replies: Arc::default(),
        };
        let (passes, replies) = (gate.passes.clone(), gate.replies.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (passes, replies) = (passes.clone(), replies.clone());
                tokio::spawn(async move {
                    // An end that is closed ends the connection, as it does without a gate.
                    let _ = forward(client, server, &passes, &replies).await;
                });
            }
        });
        Ok(gate)
    }

    /// Holds all replies from now on.
    pub(crate) fn close(&self) {
        self.passes.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Lets one reply through.
    pub(crate) fn let_through(&self) {
        self.passes.add_permits(1);
    }

    /// How many replies the server has sent.
    pub(crate) fn replies(&self) -> usize {
        self.replies.load(Ordering::SeqCst)
    }
}

async fn forward(
    client: TcpStream,
    server: SocketAddr,
    passes: &Semaphore,
    replies: &AtomicUsize,
) -> Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answers = async {
        let mut reply = vec![0; 64 * 1024];
        loop {
            let length = from_server.read(&mut reply).await?;
            if length == 0 {
                return Ok::<_, Box<dyn std::error::Error>>(());
            }
            replies.fetch_add(1, Ordering::SeqCst);
            passes.acquire().await?.forget();
            to_client.write_all(&reply[..length]).await?;
        }
    };
    tokio::select! {
        ended = copy(&mut from_client, &mut to_server) => drop(ended?),
        ended = answers => ended?,
    }
    Ok(())
}
