//! A Hub that sends anything: nothing is written outside the cache.
#![no_main]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;
use std::{fs, thread};

use libfuzzer_sys::fuzz_target;
use moeflux_hub::{HubEnv, resolve};

/// What is answered to a question for the list of files, and to any other.
static REPLIES: Mutex<[Vec<u8>; 2]> = Mutex::new([Vec::new(), Vec::new()]);

static ENDPOINT: LazyLock<String> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("a bound port");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Clients that hang up in between are none of its business.
            let _ = answer(stream);
        }
    });
    format!("http://{addr}")
});

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    for line in lines.by_ref() {
        if line?.is_empty() {
            break;
        }
    }
    let replies = REPLIES.lock().expect("one fuzzer");
    let reply = &replies[usize::from(!request.contains("/api/"))];
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n", reply.len())?;
    stream.write_all(reply)
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.file_name()).collect()
}

fuzz_target!(|input: &[u8]| {
    // The list of files, a line's end, any file.
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (listing, file) = input.split_at(end);
    *REPLIES.lock().expect("one fuzzer") = [listing.to_vec(), file.to_vec()];
    let dir = tempfile::tempdir().expect("a folder for the cache");
    let env = HubEnv {
        endpoint: ENDPOINT.clone(),
        cache_dir: dir.path().join("cache"),
        retry_wait: Duration::ZERO,
        ..HubEnv::from_lookup(|_| None)
    };
    if let Ok(path) = resolve("a/b", &env, &mut |_| {}) {
        assert!(path.starts_with(&env.cache_dir));
    }
    assert!(names(dir.path()).iter().all(|name| name == "cache"));
});
