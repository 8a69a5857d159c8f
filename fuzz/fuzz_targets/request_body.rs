//! Bodies of requests to a running server: it answers each, and no failure is its own.
#![no_main]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use moeflux_engine::{Engine, EngineOptions};
use moeflux_server::{Server, ServerOptions};

const ROUTES: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
];

static ADDR: LazyLock<SocketAddr> = LazyLock::new(|| {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/moeflux-cli/demo");
    let engine = EngineOptions::default().threads(Some(1)).ctx(Some(64)).sessions(Some(2));
    let engine = Engine::open(Path::new(model), &engine).expect("the demo model");
    let any_port = "127.0.0.1:0".parse().expect("an address");
    let mut options = ServerOptions::new(any_port, String::from("demo"));
    (options.any_model, options.max_tokens) = (true, Some(2));
    let server = Server::bind(engine, options).expect("a free port");
    let addr = server.addr();
    thread::spawn(move || server.run_until(std::future::pending()));
    addr
});

fuzz_target!(|input: &[u8]| {
    // The first byte, a digit in seeds, is for the route.
    let Some((route, body)) = input.split_first() else { return };
    let route = ROUTES[usize::from(route.wrapping_sub(b'0')) % ROUTES.len()];
    let mut stream = TcpStream::connect(*ADDR).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time that is not 0");
    let head = format!(
        "POST {route} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        *ADDR,
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("the server reads");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("the server answers");
    let reply = String::from_utf8_lossy(&reply);
    assert!(reply.starts_with("HTTP/1.1 ") && !reply.starts_with("HTTP/1.1 500"), "{reply}");
});
