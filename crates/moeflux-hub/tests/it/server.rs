//! A hub on the loopback interface: its interface, its redirects, and faults on demand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use moeflux_core::hex;
use sha2::{Digest, Sha256};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong, once, with the next request whose path contains a text. Faults of one path
/// happen in their order; those of content wait for a request of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing goes wrong with this request.
    None,
    /// The answer is this status.
    Status(u16),
    /// The answer is this status with these headers (each line ended) and this body.
    Reply(u16, &'static str, &'static str),
    /// The answer is these bytes, be they HTTP or not, and the end of the connection.
    Raw(&'static [u8]),
    /// The answer is a redirect to the same address.
    Loop,
    /// The content that was asked for comes with this status and these headers (each line ended)
    /// in place of the true ones, but for its length.
    As(u16, &'static str),
    /// The connection stays open, and nothing is sent.
    Silence,
    /// The content has no announced length and no end.
    Endless,
    /// The content is this web page.
    Page,
    /// The connection stays open and silent after this number of bytes of content.
    Stall(usize),
    /// The connection ends after this number of bytes of content.
    Cut(usize),
    /// The whole file is sent, whatever range was asked for.
    IgnoreRange,
    /// The first byte is another.
    Damage,
    /// One byte more than promised is announced and sent.
    TooLong,
}

/// A request as it arrived; header names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) is_cdn: bool,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: Vec<(String, Fault)>,
    /// Faults of every request whose path contains a text.
    lasting: Vec<(String, Fault)>,
    /// The list of files in place of the true one.
    listing: Option<Vec<u8>>,
    requests: Vec<Request>,
    /// The list of files tells neither sizes nor hashes.
    is_terse: bool,
    /// No range is honoured.
    is_without_ranges: bool,
    /// Sizes that the list of files gives in place of the true ones.
    announced: BTreeMap<String, u64>,
}

/// Two servers: the hub, and the storage that large files are redirected to.
#[derive(Clone)]
pub(crate) struct Hub {
    state: Arc<Mutex<State>>,
    pub(crate) endpoint: String,
    cdn: String,
}

impl Hub {
    pub(crate) fn start(files: &[(&str, &[u8])]) -> Self {
        let state = State {
            files: files.iter().map(|(name, data)| (name.to_string(), data.to_vec())).collect(),
            ..State::default()
        };
        let (hub, cdn) = (listener(), listener());
        let address = |l: &TcpListener| format!("http://{}", l.local_addr().unwrap());
        let server = Self {
            state: Arc::new(Mutex::new(state)),
            endpoint: address(&hub),
            cdn: address(&cdn),
        };
        for (listener, is_cdn) in [(hub, false), (cdn, true)] {
            let server = server.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let server = server.clone();
                    std::thread::spawn(move || server.answer(stream, is_cdn));
                }
            });
        }
        server
    }

    pub(crate) fn fail(&self, path: &str, fault: Fault) {
        self.state.lock().unwrap().faults.push((path.to_owned(), fault));
    }

    /// As [`Hub::fail`], with every such request.
    pub(crate) fn always(&self, path: &str, fault: Fault) {
        self.state.lock().unwrap().lasting.push((path.to_owned(), fault));
    }

    /// Answers with this list of files.
    pub(crate) fn list_as(&self, json: impl Into<Vec<u8>>) {
        self.state.lock().unwrap().listing = Some(json.into());
    }

    /// As [`Hub::fail`], after `n_good` requests that succeed.
    pub(crate) fn fail_later(&self, path: &str, n_good: usize, fault: Fault) {
        (0..n_good).for_each(|_| self.fail(path, Fault::None));
        self.fail(path, fault);
    }

    pub(crate) fn be_terse(&self) {
        self.state.lock().unwrap().is_terse = true;
    }

    pub(crate) fn ignore_ranges(&self) {
        self.state.lock().unwrap().is_without_ranges = true;
    }

    pub(crate) fn announce(&self, path: &str, size: u64) {
        self.state.lock().unwrap().announced.insert(path.to_owned(), size);
    }

    /// Requests whose path contains a text.
    pub(crate) fn n_requests(&self, part: &str) -> usize {
        self.requests().iter().filter(|request| request.path.contains(part)).count()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    fn answer(&self, stream: TcpStream, is_cdn: bool) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let request = read_request(&mut reader, is_cdn)?;
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(request.clone());
            let is_meant = |(path, _): &(String, Fault)| request.path.contains(path);
            let is_due = |fault: Fault| {
                let is_content = request.method == "GET" && (is_cdn || !is_large(&request.path));
                is_content
                    || matches!(
                        fault,
                        Fault::Status(_)
                            | Fault::Reply(..)
                            | Fault::Raw(_)
                            | Fault::Loop
                            | Fault::Silence
                    )
            };
            let lasting = state.lasting.iter().find(|entry| is_meant(entry)).map(|entry| entry.1);
            let first = state.faults.iter().position(is_meant);
            match first.filter(|&at| is_due(state.faults[at].1)) {
                Some(at) => Some(state.faults.remove(at).1),
                None => lasting.filter(|&fault| is_due(fault)),
            }
        };
        let mut stream = stream;
        if let Some(Fault::Raw(bytes)) = fault {
            return send_raw(&mut stream, bytes);
        }
        if let Some(Fault::Silence) = fault {
            // The client gives up.
            return stream.read(&mut [0; 64]).ok().map(|_| ());
        }
        if let Some(Fault::Loop) = fault {
            let location = format!("Location: {}\r\n", request.path);
            return send(&mut stream, 302, &location, b"", 0);
        }
        if let Some(Fault::Status(status)) = fault {
            return send(&mut stream, status, "", b"", 0);
        }
        if let Some(Fault::Reply(status, headers, body)) = fault {
            return send(&mut stream, status, headers, body.as_bytes(), body.len());
        }
        if request.path.starts_with("/api/models/org/name/revision/") {
            let given = self.state.lock().unwrap().listing.clone();
            let list = given.unwrap_or_else(|| self.list().into_bytes());
            return send(&mut stream, 200, "", &list, list.len());
        }
        let prefix = if is_cdn { "/cdn/" } else { "/org/name/resolve/" };
        let name = request.path.strip_prefix(prefix).unwrap_or_default();
        let name = name.strip_prefix(COMMIT).unwrap_or(name).trim_start_matches('/');
        let address = name.to_owned();
        let name = decoded(name)?;
        let Some(data) = self.state.lock().unwrap().files.get(&name).cloned() else {
            return send(&mut stream, 404, "X-Error-Code: RepoNotFound\r\n", b"", 0);
        };
        if is_large(&name) && !is_cdn {
            let headers = format!(
                "Location: {}/cdn/{address}\r\nX-Linked-ETag: \"{}\"\r\nX-Linked-Size: {}\r\n",
                self.cdn,
                sha256(&data),
                data.len()
            );
            return send(&mut stream, 302, &headers, b"", 0);
        }
        let fault = match (fault, self.state.lock().unwrap().is_without_ranges) {
            (None, true) => Some(Fault::IgnoreRange),
            (fault, _) => fault,
        };
        send_content(&mut stream, &request, data, fault)
    }

    fn list(&self) -> String {
        let state = self.state.lock().unwrap();
        let siblings = state.files.iter().map(|(name, data)| {
            let size = state.announced.get(name).copied().unwrap_or(data.len() as u64);
            match (state.is_terse, is_large(name)) {
                (true, _) => format!(r#"{{"rfilename": "{name}"}}"#),
                (false, true) => format!(
                    r#"{{"rfilename": "{name}", "size": {size}, "blobId": "{:040x}",
                        "lfs": {{"sha256": "{}", "size": {size}, "pointerSize": 130}}}}"#,
                    7,
                    sha256(data)
                ),
                (false, false) => format!(
                    r#"{{"rfilename": "{name}", "size": {size}, "blobId": "{}"}}"#,
                    git_hash(data)
                ),
            }
        });
        let siblings: Vec<_> = siblings.collect();
        format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, siblings.join(","))
    }
}

/// An address without its escapes.
fn decoded(address: &str) -> Option<String> {
    let mut parts = address.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Weights are in large-file storage.
fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.contains(".gguf")
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

pub(crate) fn sha256(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

/// The hash that git gives a file.
fn git_hash(data: &[u8]) -> String {
    let start = sha1::Sha1::new_with_prefix(format!("blob {}\0", data.len()));
    hex(&start.chain_update(data).finalize())
}

fn read_request(reader: &mut impl BufRead, is_cdn: bool) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    Some(Request { method, path, headers, is_cdn })
}

fn send_content(
    stream: &mut TcpStream,
    request: &Request,
    mut data: Vec<u8>,
    fault: Option<Fault>,
) -> Option<()> {
    let etag = sha256(&data)[..40].to_owned();
    match fault {
        Some(Fault::Damage) => data[0] ^= 1,
        Some(Fault::TooLong) => data.push(0),
        Some(Fault::Page) => {
            let page = b"<!DOCTYPE html><p>Sign in";
            return send(stream, 200, "Content-Type: text/html\r\n", page, page.len());
        }
        _ => {}
    }
    let range = request.headers.get("range").filter(|_| !matches!(fault, Some(Fault::IgnoreRange)));
    let range = range.and_then(|r| r.strip_prefix("bytes=")?.split_once('-'));
    let (from, to) = match range {
        Some((from, "")) => (from.parse().unwrap(), data.len()),
        Some((from, last)) => (from.parse().unwrap(), last.parse::<usize>().unwrap() + 1),
        None => (0, data.len()),
    };
    let mut headers = format!("ETag: \"{etag}\"\r\n");
    let status = if let Some(Fault::As(status, given)) = fault {
        given.clone_into(&mut headers);
        status
    } else if range.is_some() {
        let _ = write!(headers, "Content-Range: bytes {from}-{}/{}\r\n", to - 1, data.len());
        206
    } else {
        200
    };
    let rest = &data[from..to];
    let sent = match fault {
        Some(Fault::Cut(n) | Fault::Stall(n)) => &rest[..n.min(rest.len())],
        _ if request.method == "HEAD" => &[],
        _ => rest,
    };
    if matches!(fault, Some(Fault::Endless)) {
        let head = format!("HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        loop {
            let chunk = "0".repeat(1 << 16);
            stream.write_all(format!("{:x}\r\n{chunk}\r\n", chunk.len()).as_bytes()).ok()?;
        }
    }
    if matches!(fault, Some(Fault::Stall(_))) {
        let head =
            format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n", rest.len());
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(sent).ok()?;
        // The client gives up.
        return stream.read(&mut [0; 64]).ok().map(|_| ());
    }
    send(stream, status, &headers, sent, rest.len())
}

fn send(
    stream: &mut TcpStream,
    status: u16,
    headers: &str,
    body: &[u8],
    length: usize,
) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
    );
    send_raw(stream, &[head.as_bytes(), body].concat())
}

fn send_raw(stream: &mut TcpStream, bytes: &[u8]) -> Option<()> {
    stream.write_all(bytes).ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    // The client closes when it has read all; until then the content must not be cut by a reset.
    stream.read(&mut [0; 64]).ok().map(|_| ())
}
