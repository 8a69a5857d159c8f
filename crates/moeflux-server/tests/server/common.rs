//! A server with the demo model on a free port, and a client of plain sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread::{self, JoinHandle};

use moeflux_engine::{Engine, EngineOptions, Speculation};
use moeflux_server::{Server, ServerOptions};
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub(crate) struct Running {
    pub(crate) addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).unwrap();
        }
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|result| result.is_ok()));
    }
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions::new("127.0.0.1:0".parse().unwrap(), String::from("demo"))
}

pub(crate) fn start(options: ServerOptions) -> Running {
    start_with(options, Speculation::Auto)
}

pub(crate) fn start_with(options: ServerOptions, drafts: Speculation) -> Running {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    start_model(&dir, options, drafts)
}

/// A server of the model in a folder.
pub(crate) fn start_at(dir: &Path, options: ServerOptions) -> Running {
    start_model(dir, options, Speculation::Auto)
}

fn start_model(dir: &Path, options: ServerOptions, drafts: Speculation) -> Running {
    let sessions = Some(options.n_sessions);
    let engine = EngineOptions::default().sessions(sessions).speculation(drafts);
    Running::of(Server::bind(Engine::open(dir, &engine).unwrap(), options).unwrap())
}

/// Why a server with these options does not listen.
pub(crate) fn bind(options: ServerOptions) -> Result<(), String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    let engine = EngineOptions::default().sessions(Some(1));
    let bound = Server::bind(Engine::open(&dir, &engine).unwrap(), options);
    bound.map(drop).map_err(|err| err.to_string())
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body))
    }
}

impl Running {
    /// Runs a server on a thread of its own.
    pub(crate) fn of(server: Server) -> Running {
        let addr = server.addr();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            server.run_until(async { drop(stopped.await) }).unwrap();
        });
        Running { addr, stop: Some(stop), thread: Some(thread) }
    }

    /// Sends a request whose head lacks `Host` and `Connection`.
    pub(crate) fn send(&self, head: &str, body: &str) -> Reply {
        self.send_to(&self.addr.to_string(), head, body)
    }

    pub(crate) fn send_to(&self, host: &str, head: &str, body: &str) -> Reply {
        self.exchange(host, head, body.as_bytes())
    }

    /// As [`send`](Running::send), with any bytes for a body.
    pub(crate) fn send_bytes(&self, head: &str, body: &[u8]) -> Reply {
        self.exchange(&self.addr.to_string(), head, body)
    }

    fn exchange(&self, host: &str, head: &str, body: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        let head = format!("{head}\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // One that is refused by its header is not read to its end.
        let _ = stream.write_all(body);
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let is_chunked = head.contains("transfer-encoding: chunked");
        let body = if is_chunked { dechunked(body) } else { body.to_owned() };
        Reply { status, head: head.to_owned(), body }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1"), "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}"
        );
        self.send(&head, &body)
    }
}

fn dechunked(mut body: &str) -> String {
    let mut text = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return text;
        }
        text.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
}

pub(crate) fn question(text: &str) -> Value {
    json!({
        "model": "demo", "temperature": 0, "max_tokens": 40,
        "messages": [{"role": "user", "content": text}],
    })
}
