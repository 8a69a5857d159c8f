//! Clients that shut their sending side, and clients that leave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use moeflux_server::ServerOptions;
use serde_json::{Value, json};

use crate::common::{Running, options, question, start};

/// A question whose answer has this many tokens.
fn long(n_tokens: usize) -> Value {
    json!({
        "model": "demo", "max_tokens": n_tokens, "temperature": 2,
        "logit_bias": {"8187": -100, "8185": -100},
        "messages": [{"role": "user", "content": "Hi"}],
    })
}

fn ask(server: &Running, body: &Value, version: &str) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(server.addr).unwrap();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/{version}\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream
}

fn read(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_client_that_has_shut_its_sending_side_gets_its_answer() {
    let server = start(options());
    let mut streamed = question("Hi");
    streamed["stream"] = json!(true);
    for (body, end) in
        [(question("Hi"), "\"choices\""), (streamed, "data: [DONE]\n\n\r\n0\r\n\r\n")]
    {
        let stream = ask(&server, &body, "1.1");
        stream.shutdown(Shutdown::Write).unwrap();
        let text = read(stream);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains(end), "{text}");
    }
    let stream = ask(&server, &question("Hi"), "1.0");
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read(stream).starts_with("HTTP/1.0 200 OK\r\n"));
}

#[test]
fn a_client_that_waits_long_is_told_that_it_is_answered_and_one_that_left_is_dropped() {
    let server = start(ServerOptions { n_sessions: 1, ..options() });
    let n_tokens = 3500;
    let began = Instant::now();
    let stream = ask(&server, &long(n_tokens), "1.1");
    stream.shutdown(Shutdown::Write).unwrap();
    let text = read(stream);
    let time = began.elapsed();
    let (interim, rest) = text.split_once("\r\n\r\n").unwrap();
    if time > Duration::from_secs(2) {
        assert_eq!(interim, "HTTP/1.1 100 Continue");
        assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "{rest}");
    }
    assert!(text.contains("\"finish_reason\":\"length\""), "{text}");

    let generated = || server.get("/status").json()["now"]["generated_tokens"].as_u64().unwrap();
    let before = generated();
    let stream = ask(&server, &long(n_tokens), "1.1");
    while server.get("/status").json()["now"]["running"] == 0 {
        sleep(Duration::from_millis(5));
    }
    drop(stream);
    let left = Instant::now();
    while server.get("/status").json()["now"]["running"] == 1 {
        assert!(left.elapsed() < time + Duration::from_secs(20), "it goes on");
        sleep(Duration::from_millis(20));
    }
    // The whole answer takes longer than it takes to see that the client left.
    let n_made = generated() - before;
    let (after, within) = (left.elapsed(), Duration::from_secs(3));
    assert!(n_made < n_tokens as u64 || time < within, "{n_made} tokens in {after:?} of {time:?}");
}
