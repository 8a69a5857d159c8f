//! Fetches a picture from an address that a client names, and from nowhere that clients cannot reach.
//!
//! The name is resolved once, and the connection is made to one of the addresses that were looked at. No
//! redirect is followed: it would name another address. No proxy is asked, which would resolve by itself, and
//! nothing that identifies this server's user is sent.

use std::sync::OnceLock;
use std::time::Duration;

use moeflux_core::show_bytes;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

use super::address::is_public;

/// How long the pictures of a request may take to come.
pub(super) const MAX_TIME: Duration = Duration::from_secs(30);

/// How long a connection may take to be made.
const MAX_CONNECT: Duration = Duration::from_secs(10);

/// The bytes of a picture at an address, `max_bytes` of them at most, `within` a time.
///
/// # Errors
/// Why they cannot be had, for the client.
pub(super) fn fetch(url: &str, max_bytes: usize, within: Duration) -> Result<Vec<u8>, String> {
    if within.is_zero() {
        let most = MAX_TIME.as_secs();
        return Err(format!("the images of the request take more than {most} seconds to fetch"));
    }
    fetch_by(Public, url, max_bytes, within)
}

/// Resolves names to public addresses alone.
#[derive(Debug, Default)]
struct Public;

impl Resolver for Public {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = DefaultResolver::default().resolve(uri, config, timeout)?;
        let mut public = self.empty();
        for address in found.iter().filter(|address| is_public(address.ip())) {
            public.push(*address);
        }
        if public.is_empty() { Err(Error::Other(Box::new(NotPublic))) } else { Ok(public) }
    }
}

/// A name of addresses none of which is public.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it is no address of the public network")]
struct NotPublic;

fn fetch_by(
    resolver: impl Resolver,
    url: &str,
    max_bytes: usize,
    within: Duration,
) -> Result<Vec<u8>, String> {
    let uri: Uri = url.parse().map_err(|_| String::from("it is no valid address"))?;
    let has_login = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if has_login {
        return Err(String::from("an address with a name or a password is not fetched"));
    }
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_global(Some(within))
        .timeout_connect(Some(MAX_CONNECT))
        .tls_config(TlsConfig::builder().root_certs(trusted()).build())
        .user_agent(concat!("moeflux/", env!("CARGO_PKG_VERSION")))
        .build();
    let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
    let failed = |err: Error| match err {
        Error::BodyExceedsLimit(_) => {
            format!("the image there has more than {}", show_bytes(max_bytes as u64))
        }
        err => format!("it cannot be fetched: {err}"),
    };
    let mut response = agent.get(uri).call().map_err(failed)?;
    let status = response.status();
    if status.is_redirection() {
        return Err(format!("it leads to another address ({status}): give that one"));
    }
    if !status.is_success() {
        return Err(format!("it cannot be fetched: the server there answers {status}"));
    }
    // The library also refuses a body that has all of its limit.
    let body = response.body_mut().with_config().limit(max_bytes as u64 + 1);
    body.read_to_vec().map_err(failed)
}

/// The authorities that the operating system trusts, or those of Mozilla where it has none.
fn trusted() -> RootCerts {
    static TRUSTED: OnceLock<RootCerts> = OnceLock::new();
    let read = || {
        let found = rustls_native_certs::load_native_certs().certs;
        let certs = found.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned());
        let certs: Vec<Certificate<'static>> = certs.collect();
        if certs.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&certs) }
    };
    TRUSTED.get_or_init(read).clone()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one request with these bytes, and gives its address and the lines of the request.
    fn answering(reply: Vec<u8>) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a.png", listener.local_addr().unwrap());
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            // The client may be gone.
            let _ = stream.write_all(&reply);
            head
        });
        (url, served)
    }

    fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n");
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn what_is_there_is_fetched_within_limits() {
        let (url, served) = answering(reply("200 OK", "", b"bytes"));
        assert_eq!(fetch_by(DefaultResolver::default(), &url, 5, MAX_TIME), Ok(b"bytes".to_vec()));
        let head = served.join().unwrap();
        assert!(head[0].starts_with("GET /a.png "), "{head:?}");
        assert!(!head.iter().any(|line| line.to_lowercase().starts_with("authorization")));

        let moved = reply("302 Found", "Location: http://127.0.0.1/\r\n", b"");
        for (reply, problem) in [
            (reply("200 OK", "", b"bytes!"), "more than 5"),
            (moved, "another address"),
            (reply("404 Not Found", "", b""), "404"),
        ] {
            let (url, served) = answering(reply);
            let err = fetch_by(DefaultResolver::default(), &url, 5, MAX_TIME).unwrap_err();
            assert!(err.contains(problem), "{err}");
            served.join().unwrap();
        }
    }

    #[test]
    fn nothing_of_this_machine_or_its_network_is_fetched() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        for host in
            ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"]
        {
            let err = fetch(&format!("http://{host}:{port}/"), 5, MAX_TIME).unwrap_err();
            assert!(err.contains("public") || err.contains("cannot be fetched"), "{host}: {err}");
        }
        for url in ["http://10.0.0.1/", "http://169.254.169.254/latest", "http://[fd00::1]/"] {
            let err = fetch(url, 5, MAX_TIME).unwrap_err();
            assert!(err.contains("no address of the public network"), "{url}: {err}");
        }
        assert!(listener.accept().is_err(), "a connection was made");
        let err = fetch("http://me:secret@example.org/", 5, MAX_TIME).unwrap_err();
        assert!(err.contains("password"), "{err}");
        assert!(fetch("http://", 5, MAX_TIME).is_err());
        let err = fetch("http://example.org/", 5, Duration::ZERO).unwrap_err();
        assert!(err.contains("30 seconds"), "{err}");
    }
}
