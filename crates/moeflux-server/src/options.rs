//! How a server is set up.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::log::LogFormat;
use crate::origins::AllowedOrigin;
use crate::tls::TlsFiles;

/// What the page says of a model that can do little.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Introduction {
    /// What the model is and what it knows, as a sentence of its own without the full stop.
    pub about: String,
    /// Questions that it answers well. The page offers them.
    pub questions: Vec<String>,
}

/// A file by which programs of this machine reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Where it is. A socket at which no program listens is replaced.
    pub path: PathBuf,
    /// The rights of the file: who may write may connect.
    pub mode: u32,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens. Any other address than the machine's own needs a key.
    pub addr: SocketAddr,
    /// A Unix socket at which it listens in place of this address. It needs no key: its rights say
    /// who may connect.
    pub unix_socket: Option<UnixSocket>,
    /// The certificate with which all connections are encrypted.
    pub tls: Option<TlsFiles>,
    /// The port of the same host where it listens for Ollama's clients, too.
    pub ollama_port: Option<u16>,
    /// Keys of which a client must show one, where there are any.
    pub api_keys: Vec<String>,
    /// A file of keys with names and limits ([`KeyFile`](crate::KeyFile)), of which a client must show
    /// one. It is read again when it changes.
    pub keys_file: Option<PathBuf>,
    /// What the model is called; the first is its name, others mean it too.
    pub model_names: Vec<String>,
    /// Whether every other name means it too.
    pub any_model: bool,
    /// What the page says of the model; it then shows no answer that would be a guess.
    pub introduction: Option<Introduction>,
    /// Answers at a time.
    pub n_sessions: usize,
    /// Requests that may wait for one to end.
    pub max_waiting: usize,
    /// Connections at a time.
    pub max_connections: usize,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Whether images are fetched from addresses that requests name.
    pub allow_image_urls: bool,
    /// Tokens of an answer, whatever the client asks for.
    pub max_tokens: Option<usize>,
    /// Tokens of thoughts at most, where a request does not say it; 0 for none.
    pub thinking_budget: Option<usize>,
    /// How long a model stays loaded without requests, where they do not say it and another one could
    /// be loaded; without this, as long as the server runs.
    pub idle_timeout: Option<Duration>,
    /// Models that are loaded at a time at most; without this, as many as memory has room for.
    pub max_loaded: Option<usize>,
    /// Whether clients may download and remove models.
    pub manages_models: bool,
    /// Where responses are kept that later requests may refer to; in memory alone where this is absent.
    pub response_dir: Option<PathBuf>,
    /// How long a client may take for a request's header.
    pub header_timeout: Duration,
    /// How long a client may take for a request's body.
    pub body_timeout: Duration,
    /// How long a client may leave what it is sent unread.
    pub write_timeout: Duration,
    /// How long running requests may take to finish when the server shuts down.
    pub grace: Duration,
    /// Origins whose pages may use the server in addition to its own.
    pub cors_origins: Vec<AllowedOrigin>,
    /// Whether every request is logged on standard error: its id, key, route, status and tokens.
    pub log_requests: bool,
    /// How lines of the log are written.
    pub log_format: LogFormat,
    /// Whether every prompt is written to standard error.
    pub log_prompts: bool,
    /// Whether requests with fields that are not known are refused.
    pub is_strict: bool,
}

/// Origins that Ollama allows by default.
const OLLAMA_ORIGINS: [&str; 11] = [
    "http://localhost:*",
    "https://localhost:*",
    "http://127.0.0.1:*",
    "https://127.0.0.1:*",
    "http://0.0.0.0:*",
    "https://0.0.0.0:*",
    "app://",
    "file://",
    "tauri://",
    "vscode-webview://",
    "vscode-file://",
];

impl ServerOptions {
    /// Where it listens for Ollama's clients.
    pub(crate) fn ollama_addr(&self) -> Option<SocketAddr> {
        self.ollama_port.map(|port| SocketAddr::new(self.addr.ip(), port))
    }

    /// The options of the port for Ollama's clients. As with Ollama, pages of this machine and of
    /// apps may use it.
    pub(crate) fn for_ollama(&self) -> ServerOptions {
        let local = OLLAMA_ORIGINS.iter().filter_map(|origin| origin.parse().ok());
        let mut options = ServerOptions { unix_socket: None, ..self.clone() };
        options.cors_origins.extend(local);
        options
    }

    /// The usual limits.
    pub fn new(addr: SocketAddr, model_name: String) -> ServerOptions {
        ServerOptions {
            addr,
            unix_socket: None,
            tls: None,
            ollama_port: None,
            api_keys: Vec::new(),
            keys_file: None,
            model_names: vec![model_name],
            any_model: false,
            introduction: None,
            n_sessions: 8,
            max_waiting: 64,
            max_connections: 512,
            max_body: 16 << 20,
            allow_image_urls: false,
            max_tokens: None,
            thinking_budget: None,
            idle_timeout: None,
            max_loaded: None,
            manages_models: false,
            response_dir: None,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            grace: Duration::from_secs(10),
            cors_origins: Vec::new(),
            log_requests: false,
            log_format: LogFormat::Text,
            log_prompts: false,
            is_strict: false,
        }
    }
}
