//! A server in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A running `moeflux serve`.
pub(crate) struct Server {
    child: Child,
    addr: String,
    /// Before it listened.
    said: Vec<String>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves the model in a folder, which is also its cache.
    pub(crate) fn start(model: &Path) -> Server {
        Server::start_with(model, &[])
    }

    /// As [`start`](Server::start), with further flags.
    pub(crate) fn start_with(model: &Path, flags: &[&str]) -> Server {
        let mut args = vec!["--model", model.to_str().unwrap()];
        args.extend(flags);
        Server::start_in(model, &args)
    }

    /// A server with these flags, whose cache, and the Hub's, is in a folder.
    pub(crate) fn start_in(cache: &Path, flags: &[&str]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_moeflux"))
            .args(["serve", "--addr", "127.0.0.1:0"])
            .args(flags)
            .env("MOEFLUX_CACHE", cache)
            .env("HF_HUB_CACHE", cache)
            .env("HF_HUB_OFFLINE", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        let mut said = Vec::new();
        let line = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {said:?}"));
            if line.contains("listening on http") {
                break line;
            }
            said.push(line);
        };
        // Read on, so that the server never waits for this pipe.
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        std::thread::spawn(move || lines.for_each(|line| written.lock().unwrap().push(line)));
        let addr = line.split("://").nth(1).unwrap().trim().to_owned();
        Server { child, addr, said, log }
    }

    /// The first line of the log since the server listens that has this text.
    pub(crate) fn logged(&self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let log = self.log.lock().unwrap().clone();
            if let Some(line) = log.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{text} is not in {log:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// The body of a reply to GET.
    pub(crate) fn get(&self, path: &str) -> String {
        self.get_with(path, "accept: */*")
    }

    /// As [`get`](Server::get), with further header lines.
    pub(crate) fn get_with(&self, path: &str, headers: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close", self.addr);
        let request = format!("{head}\r\n{headers}\r\n\r\n");
        let (status, _, body) = self.exchange(&request);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Status and body of a reply to POST.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let (status, _, body) = self.post_with(path, "accept: */*", body);
        (status, body)
    }

    /// The status of a reply to DELETE.
    pub(crate) fn delete(&self, path: &str, headers: &str, body: &Value) -> u16 {
        let (body, host) = (body.to_string(), &self.addr);
        let head = format!("DELETE {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close");
        let length = body.len();
        let (status, _, _) = self.exchange(&format!(
            "{head}\r\n{headers}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        ));
        status
    }

    /// Status, head and body of a reply to POST with further header lines.
    pub(crate) fn post_with(
        &self,
        path: &str,
        headers: &str,
        body: &Value,
    ) -> (u16, String, String) {
        let (body, host) = (body.to_string(), &self.addr);
        let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close");
        let length = body.len();
        self.exchange(&format!(
            "{head}\r\n{headers}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
    }

    /// All lines of the log before the server listened.
    pub(crate) fn said_before(&self) -> &[String] {
        &self.said
    }

    /// All lines of the log since the server listens.
    pub(crate) fn whole_log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// The states of its child processes, as `/proc` has them: `Z` for a zombie.
    #[cfg(target_os = "linux")]
    pub(crate) fn states_of_children(&self) -> Vec<char> {
        let parent = self.child.id().to_string();
        let stats = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            // Others may have ended meanwhile.
            std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()
        });
        // Process, (name), state, parent; a name may have spaces.
        let child = |stat: String| {
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let state = fields.next()?.chars().next()?;
            (fields.next()? == parent).then_some(state)
        };
        stats.filter_map(child).collect()
    }

    fn exchange(&self, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_default();
        (status, head.to_owned(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
