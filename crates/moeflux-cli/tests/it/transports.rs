//! Addresses of `moeflux serve` that are no host and port, and its certificate.

use crate::common::moeflux;

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
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    assert!(!path.exists());
}
