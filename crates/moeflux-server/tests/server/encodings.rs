//! Bodies of requests that clients have compressed.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use moeflux_server::ServerOptions;
use serde_json::json;

use crate::common::{Reply, Running, options, question, start};

/// Encodes what a reader has.
type Encode = fn(&mut dyn Read) -> Vec<u8>;

const ENCODINGS: [(&str, Encode); 3] = [("gzip", gzip), ("deflate", zlib), ("zstd", zstd)];

fn gzip(reader: &mut dyn Read) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    io::copy(reader, &mut encoder).unwrap();
    encoder.finish().unwrap()
}

fn zlib(reader: &mut dyn Read) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    io::copy(reader, &mut encoder).unwrap();
    encoder.finish().unwrap()
}

fn zstd(reader: &mut dyn Read) -> Vec<u8> {
    zstd::encode_all(reader, 1).unwrap()
}

fn post(server: &Running, path: &str, encoding: &str, body: &[u8]) -> Reply {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Content-Encoding: {encoding}"
    );
    server.send_bytes(&head, body)
}

#[test]
fn an_answer_does_not_depend_on_how_its_question_came() {
    let server = start(options());
    let asked = question("What does `Vec::push` do?");
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let text = |reply: Reply| {
            let reply = reply.json();
            reply.pointer("/choices/0/message").or(reply.get("content")).unwrap().clone()
        };
        let plain = text(server.post(path, &asked));
        for (name, encode) in ENCODINGS {
            let body = encode(&mut asked.to_string().as_bytes());
            assert_eq!(text(post(&server, path, name, &body)), plain, "{path} {name}");
        }
        let same = post(&server, path, "identity", asked.to_string().as_bytes());
        assert_eq!(text(same), plain);
    }
    // Large enough to wait for room: it is read, and is then longer than the context.
    let large = json!({"messages": [{"role": "user", "content": "word ".repeat(200_000)}]});
    for (name, encode) in ENCODINGS {
        let body = encode(&mut large.to_string().as_bytes());
        let reply = post(&server, "/apply-template", name, &body);
        assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{}", reply.body);
    }
}

#[test]
fn a_body_that_unpacks_to_gigabytes_is_refused_while_it_unpacks() {
    let server = start(ServerOptions { max_body: 1 << 20, ..options() });
    for (name, encode) in ENCODINGS {
        let n_bytes = if name == "zstd" { 4 << 30 } else { 200 << 20 };
        let body = encode(&mut io::repeat(b' ').take(n_bytes));
        assert!(body.len() < 1 << 20, "{name}: {}", body.len());
        let began = Instant::now();
        let reply = post(&server, "/v1/chat/completions", name, &body);
        assert_eq!(reply.status, 413, "{name}: {}", reply.body);
        assert!(reply.body.contains("larger than 1048576 bytes"), "{}", reply.body);
        assert!(began.elapsed() < Duration::from_secs(5), "{name}: {:?}", began.elapsed());
    }
    // What is too large before it is unpacked is refused by its length.
    let reply = post(&server, "/v1/chat/completions", "gzip", &vec![0; 2 << 20]);
    assert_eq!(reply.status, 413);
}

#[test]
fn an_encoding_that_is_not_read_is_named() {
    let server = start(options());
    for (encoding, shown) in [("br", "br"), ("gzip, zstd", "gzip, zstd"), ("aes128gcm", "aes")] {
        for path in ["/v1/chat/completions", "/v1/messages", "/api/chat"] {
            let reply = post(&server, path, encoding, b"{}");
            assert_eq!(reply.status, 415, "{}", reply.body);
            assert!(reply.body.contains(shown), "{}", reply.body);
            assert!(reply.head.contains("accept-encoding: gzip, deflate, zstd"), "{}", reply.head);
        }
    }
    for (name, encode) in ENCODINGS {
        let whole = encode(&mut question("Hi").to_string().as_bytes());
        for wrong in [&b"{}"[..], &whole[..whole.len() / 2]] {
            let reply = post(&server, "/v1/chat/completions", name, wrong);
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("body")));
        }
    }
}

#[test]
fn the_connection_goes_on_behind_a_compressed_body() {
    let server = start(options());
    let body = gzip(&mut question("Hi").to_string().as_bytes());
    let mut stream = std::net::TcpStream::connect(server.addr).unwrap();
    for connection in ["keep-alive", "close"] {
        let length = body.len();
        write!(
            stream,
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Encoding: gzip\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(&body).unwrap();
    }
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    // The field `content` is missing: both were read.
    assert_eq!(text.matches("HTTP/1.1 400").count(), 2, "{text}");
}
