//! TLS, HTTP/2 and Unix sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2::client::SendRequest;
use hyper::body::Bytes;
use hyper::{Request, Response};
use moeflux_server::{ServerError, ServerOptions, TlsFiles};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::{Running, options, question, start};
use crate::with;

const CHAT: &str = "/v1/chat/completions";

/// Certificates for localhost with their keys, which `openssl req -x509` made.
const FIRST: [&str; 2] = [include_str!("tls/first.pem"), include_str!("tls/first-key.pem")];
const SECOND: [&str; 2] = [include_str!("tls/second.pem"), include_str!("tls/second-key.pem")];

/// A certificate in files of a folder.
fn certificate(dir: &Path, [cert, key]: [&str; 2]) -> TlsFiles {
    let files = TlsFiles { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
    std::fs::write(&files.cert, cert).unwrap();
    std::fs::write(&files.key, key).unwrap();
    files
}

/// A client that trusts one certificate.
fn client(pem: &str, protocols: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

struct Secure {
    server: Running,
    files: TlsFiles,
    _dir: TempDir,
}

impl Secure {
    fn start(options: ServerOptions) -> Secure {
        let dir = tempfile::tempdir().unwrap();
        let files = certificate(dir.path(), FIRST);
        let server = start(ServerOptions { tls: Some(files.clone()), ..options });
        Secure { server, files, _dir: dir }
    }

    /// Sends a request by HTTP/1.1, and reads all that comes.
    fn exchange(&self, pem: &str, request: &str) -> std::io::Result<String> {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(client(pem, &["http/1.1"]), name).unwrap();
        let socket = TcpStream::connect(self.server.addr).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

const HEALTH: &str = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn a_server_with_a_certificate_speaks_tls_and_nothing_else() {
    let secure = Secure::start(options());
    let text = secure.exchange(FIRST[0], HEALTH).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\"ok\""), "{text}");
    let mut plain = TcpStream::connect(secure.server.addr).unwrap();
    plain.write_all(HEALTH.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&bytes));
}

#[test]
fn a_handshake_that_does_not_come_is_given_up() {
    let header_timeout = Duration::from_millis(200);
    let secure = Secure::start(ServerOptions { header_timeout, ..options() });
    let mut silent = TcpStream::connect(secure.server.addr).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(silent.read(&mut [0; 10]).unwrap(), 0);
    // One without TLS has as long for its first words.
    let plain = start(ServerOptions { header_timeout, ..options() });
    let mut silent = TcpStream::connect(plain.addr).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    silent.write_all(b"PRI * HT").unwrap();
    assert_eq!(silent.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn a_renewed_certificate_is_used() {
    let secure = Secure::start(options());
    let dir = tempfile::tempdir().unwrap();
    let renewed = certificate(dir.path(), SECOND);
    assert!(secure.exchange(SECOND[0], HEALTH).is_err());
    std::fs::rename(&renewed.key, &secure.files.key).unwrap();
    std::fs::rename(&renewed.cert, &secure.files.cert).unwrap();
    let began = Instant::now();
    while secure.exchange(SECOND[0], HEALTH).is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "the old certificate is used");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn files_that_are_no_certificate_start_no_server() {
    let dir = tempfile::tempdir().unwrap();
    let files = certificate(dir.path(), FIRST);
    let second = tempfile::tempdir().unwrap();
    let other = certificate(second.path(), SECOND);
    let wrong = dir.path().join("wrong.pem");
    std::fs::write(&wrong, "no PEM\n").unwrap();
    let none = dir.path().join("none.pem");
    for (cert, key, part) in [
        (&none, &files.key, "none.pem cannot be read"),
        (&files.cert, &none, "none.pem cannot be read"),
        (&wrong, &files.key, "wrong.pem has no certificate"),
        (&files.cert, &wrong, "wrong.pem has no private key"),
        (&files.cert, &files.cert, "cert.pem has no private key"),
        (&files.cert, &other.key, "does not go with the certificate"),
    ] {
        let tls = Some(TlsFiles { cert: cert.clone(), key: key.clone() });
        let error = ServerOptions { tls, ..options() }.check().unwrap_err();
        assert!(matches!(error, ServerError::Tls { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains(part) && message.lines().count() == 1, "{message}");
    }
}

/// Runs `work` with a client of HTTP/2 on a connection.
fn with_http2<S, F>(
    open: impl Future<Output = S>,
    builder: &h2::client::Builder,
    work: impl FnOnce(SendRequest<Bytes>) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = ()>,
{
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let (sender, connection) = builder.handshake(open.await).await.unwrap();
        let connection = tokio::spawn(connection);
        let done = tokio::time::timeout(Duration::from_secs(100), work(sender));
        done.await.unwrap();
        connection.abort();
    });
}

async fn post(sender: &SendRequest<Bytes>, body: &Value) -> Response<h2::RecvStream> {
    let mut sender = sender.clone().ready().await.unwrap();
    let request = Request::post(format!("http://localhost{CHAT}"))
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let (reply, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_data(Bytes::from(body.to_string()), true).unwrap();
    reply.await.unwrap()
}

async fn text(reply: Response<h2::RecvStream>) -> String {
    let mut body = reply.into_body();
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    String::from_utf8(bytes).unwrap()
}

/// Several answers on one connection, streamed and not.
async fn ask_together(sender: SendRequest<Bytes>, want: String) {
    let streamed = with(question("What does `Vec::push` do?"), json!({"stream": true}));
    let whole = question("What does `Vec::push` do?");
    let mut asked = Vec::new();
    for i in 0..6 {
        let (sender, body) =
            (sender.clone(), if i % 2 == 0 { whole.clone() } else { streamed.clone() });
        asked.push(tokio::spawn(async move { text(post(&sender, &body).await).await }));
    }
    for (i, answer) in asked.into_iter().enumerate() {
        let answer = answer.await.unwrap();
        if i % 2 == 0 {
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(answer["choices"][0]["message"]["content"], *want);
        } else {
            assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
        }
    }
}

fn want(server: &Running) -> String {
    let reply = server.post(CHAT, &question("What does `Vec::push` do?")).json();
    reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn http2_has_many_answers_on_a_connection() {
    let server = start(options());
    let want = want(&server);
    let addr = server.addr;
    let open = async move { tokio::net::TcpStream::connect(addr).await.unwrap() };
    with_http2(open, &h2::client::Builder::new(), async |sender| {
        ask_together(sender.clone(), want).await;
        let health = Request::get("http://localhost/health").body(()).unwrap();
        let mut ready = sender.clone().ready().await.unwrap();
        let reply = ready.send_request(health, true).unwrap().0.await.unwrap();
        assert!(reply.headers().contains_key("x-request-id"));
        // The address stands for the header Host, which a page of another site cannot choose.
        let foreign = Request::get("http://evil.example/health").body(()).unwrap();
        let mut ready = sender.ready().await.unwrap();
        let reply = ready.send_request(foreign, true).unwrap().0.await.unwrap();
        assert_eq!(reply.status(), 403);
    });
    // The same port speaks HTTP/1.1.
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn tls_offers_http2() {
    let plain = start(options());
    let want = want(&plain);
    let secure = Secure::start(options());
    let (addr, config) = (secure.server.addr, client(FIRST[0], &["h2", "http/1.1"]));
    let open = async move {
        let socket = tokio::net::TcpStream::connect(addr).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(config).connect(name, socket).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream
    };
    let builder = h2::client::Builder::new();
    with_http2(open, &builder, async |sender| ask_together(sender, want).await);
}

#[test]
fn an_answer_that_a_client_of_http2_does_not_take_ends() {
    let write_timeout = Duration::from_millis(300);
    let server = start(ServerOptions { write_timeout, ..options() });
    let addr = server.addr;
    let open = async move { tokio::net::TcpStream::connect(addr).await.unwrap() };
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(100);
    let long = json!({
        "model": "demo", "stream": true, "max_tokens": 4000, "temperature": 2,
        "logit_bias": {"8187": -100, "8185": -100},
        "messages": [{"role": "user", "content": "Hi"}],
    });
    with_http2(open, &builder, async |sender| {
        let mut body = post(&sender, &long).await.into_body();
        // The window stays closed: nothing is given back.
        let mut n_bytes = 0;
        let ended = loop {
            match body.data().await {
                Some(Ok(data)) => n_bytes += data.len(),
                ended => break ended,
            }
        };
        assert!(n_bytes <= 100 && !matches!(ended, Some(Ok(_))), "{n_bytes} {ended:?}");
    });
    let began = Instant::now();
    while server.get("/status").json()["now"]["running"] != 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "it is still being made");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(unix)]
mod sockets {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use moeflux_server::UnixSocket;

    use super::*;

    fn get(path: &Path, host: &str) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        write!(stream, "GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_unix_socket_is_a_servers_only_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.sock");
        let socket = UnixSocket { path: path.clone(), mode: 0o600 };
        // Of this address only the port for Ollama would be used.
        let server = start(ServerOptions {
            unix_socket: Some(socket.clone()),
            addr: "0.0.0.0:0".parse().unwrap(),
            ..options()
        });
        for host in ["localhost", "a.example"] {
            let text = get(&path, host);
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = ServerOptions { unix_socket: Some(socket), ..options() };
        let error = crate::common::bind(second).unwrap_err();
        assert!(error.contains("m.sock") && error.contains("another program listens"), "{error}");
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn a_client_that_left_a_socket_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.sock");
        let unix_socket = Some(UnixSocket { path: path.clone(), mode: 0o600 });
        let server = start(ServerOptions { unix_socket, n_sessions: 1, ..options() });
        let long = json!({
            "model": "demo", "max_tokens": 4000, "temperature": 2,
            "logit_bias": {"8187": -100, "8185": -100},
            "messages": [{"role": "user", "content": "Hi"}],
        })
        .to_string();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{long}",
            long.len()
        );
        for is_closed in [true, false] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            if is_closed {
                drop(stream);
            } else {
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                assert!(text.contains("\"finish_reason\":\"length\""), "{text}");
            }
        }
        drop(server);
    }
}
