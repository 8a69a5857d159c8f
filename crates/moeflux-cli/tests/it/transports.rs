//! Addresses of `moeflux serve` that are no host and port, and its certificate.

use std::path::Path;

use crate::common::server::Server;
use crate::common::{Copy, moeflux, refuses, succeeds};

#[test]
fn flags_of_addresses_and_certificates_are_checked_before_a_model_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file.pem");
    std::fs::write(&file, "text").unwrap();
    let file = file.to_str().unwrap();
    for (flags, part) in [
        (&["--addr", "unix:"][..], "write the path of the socket"),
        (&["--addr", "unix:/tmp/x", "--port", "1"], "--port"),
        (&["--socket-mode", "rw"], "three octal digits"),
        (&["--socket-mode", "1777"], "three octal digits"),
        (&["--tls-cert", file], "--tls-key"),
        (&["--tls-key", file], "--tls-cert"),
        (&["--tls-cert", file, "--tls-key", file], "has no certificate"),
        (&["--tls-cert", "/none.pem", "--tls-key", file], "/none.pem cannot be read"),
        (&["--host", "0.0.0.0", "--tls-cert", file, "--tls-key", file], "--api-key-file"),
    ] {
        let output = moeflux(&["serve"]).args(flags).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(part), "{flags:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[cfg(unix)]
#[test]
fn a_server_on_a_unix_socket_answers_there_and_removes_it() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.sock");
    // A killed server leaves one.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut server = Command::new(env!("CARGO_BIN_EXE_moeflux"))
        .args(["serve", "--socket-mode", "660", "--until-eof", "--addr"])
        .arg(format!("unix:{}", path.display()))
        .env("MOEFLUX_CACHE", dir.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("listening on ")).unwrap();
    assert!(line.contains("listening on unix:") && line.contains("m.sock"), "{line}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let mut stream = UnixStream::connect(&path).unwrap();
    write!(stream, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains("moeflux-demo"), "{text}");
    let address = format!("unix:{}", path.display());
    let (said, _) = succeeds(&["ps", "--address", &address]);
    assert!(said.starts_with(&format!("moeflux-demo at {address}, for ")), "{said}");
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    assert!(!path.exists());
    refuses(&["ps", "--address", &address], 1, &["no server listens", &address]);
}

#[test]
fn a_server_with_tls_is_asked_by_those_who_know_its_certificate() {
    let model = Copy::of_demo();
    model.edit_json("moeflux.json", |value| {
        value["config"]["max_position_embeddings"] = 65536.into();
    });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-server/tests/server/tls");
    let file = |name: &str| folder.join(name).display().to_string();
    let (cert, key, other) = (file("first.pem"), file("first-key.pem"), file("second.pem"));
    let flags = ["--ctx", "50000", "--tls-cert", &cert, "--tls-key", &key];
    let server = Server::start_with(model.path(), &flags);
    let address = server.addr().to_owned();
    let ps = ["ps", "--address", &address];
    let (said, _) = succeeds(&[&ps[..], &["--tls-ca", &cert]].concat());
    assert!(said.contains(&format!(" at https://{address}, for ")), "{said}");
    let words = ["another certificate", "--tls-ca", "--tls-cert"];
    refuses(&[&ps[..], &["--tls-ca", &other]].concat(), 1, &words);
    refuses(&[&ps[..], &["--tls-ca", &key]].concat(), 1, &["first-key.pem", "no certificate"]);
    refuses(&ps, 1, &["another program", "--tls-ca"]);
    // An agent gets what it has to trust, and the name that the certificate has.
    let launch = ["launch", "codex", "--print", "--addr", &address, "--tls-ca", &cert];
    let (said, _) = succeeds(&launch);
    let port = address.rsplit(':').next().unwrap();
    for words in [
        format!("https://localhost:{port}/v1"),
        format!("SSL_CERT_FILE={cert}"),
        format!("NODE_EXTRA_CA_CERTS={cert}"),
    ] {
        assert!(said.contains(&words), "{words} is not in {said}");
    }
    assert!(!said.contains("moeflux serve"), "it runs already: {said}");
    drop(server);
    refuses(&launch, 1, &["no server listens", "--tls-cert", "--tls-ca"]);
}
