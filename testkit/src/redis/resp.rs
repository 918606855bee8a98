//! A tiny client for the Redis protocol (RESP 2).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::TIMEOUT;

/// A reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Nil,
    /// A whole number.
    Int(i64),
    /// A simple or bulk string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// An array.
    List(Vec<Reply>),
    /// An error, with its code: `NOSCRIPT No matching script.`
    Error(String),
}

impl Reply {
    /// The reply itself, unless it is an error.
    ///
    /// # Panics
    /// If the reply is an error.
    #[track_caller]
    pub fn ok(self) -> Self {
        if let Reply::Error(text) = &self {
            panic!("the server answered with an error: {text}");
        }
        self
    }

    /// The number in the reply.
    ///
    /// # Panics
    /// If the reply is not a number.
    #[track_caller]
    pub fn int(self) -> i64 {
        match self {
            Reply::Int(number) => number,
            other => panic!("expected a number, the server answered {other:?}"),
        }
    }

    /// The string in the reply.
    ///
    /// # Panics
    /// If the reply is not a string.
    #[track_caller]
    pub fn text(self) -> String {
        match self {
            Reply::Text(text) => text,
            other => panic!("expected a string, the server answered {other:?}"),
        }
    }

    /// The items of the reply.
    ///
    /// # Panics
    /// If the reply is not a list.
    #[track_caller]
    pub fn list(self) -> Vec<Reply> {
        match self {
            Reply::List(items) => items,
            other => panic!("expected a list, the server answered {other:?}"),
        }
    }

    /// The message of an error reply.
    ///
    /// # Panics
    /// If the reply is not an error.
    #[track_caller]
    pub fn error(self) -> String {
        match self {
            Reply::Error(text) => text,
            other => panic!("expected an error, the server answered {other:?}"),
        }
    }

    /// Whether there was no value.
    pub fn is_nil(&self) -> bool {
        matches!(self, Reply::Nil)
    }
}

/// A connection of its own to a server.
///
/// After an I/O error the connection is out of step: open another one.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects; each later reply may take up to `patience`.
    pub fn open(addr: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends one command and reads its reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let line = String::from_utf8_lossy(line);
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| garbled(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| garbled(&line));
        match kind {
            "+" => Ok(Reply::Text(rest.into())),
            "-" => Ok(Reply::Error(rest.into())),
            ":" => number().map(Reply::Int),
            "$" => match usize::try_from(number()?) {
                Ok(len) => self.bulk(len),
                Err(_) => Ok(Reply::Nil),
            },
            "*" => match number()? {
                len @ 0.. => (0..len)
                    .map(|_| self.read())
                    .collect::<io::Result<_>>()
                    .map(Reply::List),
                _ => Ok(Reply::Nil),
            },
            _ => Err(garbled(&line)),
        }
    }

    fn bulk(&mut self, len: usize) -> io::Result<Reply> {
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn garbled(line: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not a Redis reply: {line:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn parse(bytes: &'static [u8]) -> io::Result<Reply> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let mut request = [0; 14];
            socket.read_exact(&mut request).unwrap();
            assert_eq!(&request, b"*1\r\n$4\r\nPING\r\n");
            socket.write_all(bytes).unwrap();
        });
        let reply = Connection::open(addr, TIMEOUT).unwrap().call(&["PING"]);
        peer.join().unwrap();
        reply
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        assert_eq!(parse(b"+PONG\r\n").unwrap(), Reply::Text("PONG".into()));
        assert_eq!(parse(b"-ERR no\r\n").unwrap().error(), "ERR no");
        assert_eq!(parse(b":-12\r\n").unwrap().int(), -12);
        assert_eq!(parse(b"$4\r\na\r\nb\r\n").unwrap().text(), "a\r\nb");
        assert!(parse(b"$-1\r\n").unwrap().is_nil());
        assert!(parse(b"*-1\r\n").unwrap().is_nil());
        let nested = parse(b"*3\r\n:1\r\n*1\r\n$0\r\n\r\n$-1\r\n").unwrap();
        let inner = Reply::List(vec![Reply::Text(String::new())]);
        assert_eq!(nested.list(), [Reply::Int(1), inner, Reply::Nil]);
    }

    #[test]
    fn truncated_replies_are_distinguished_from_invalid_ones() {
        assert_eq!(parse(b"").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(
            parse(b"$9\r\nab").unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(
            parse(b"HTTP/1.1\r\n").unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    #[should_panic(expected = "the server answered with an error: ERR no")]
    fn ok_panics_with_the_error() {
        Reply::Error("ERR no".into()).ok();
    }
}
