//! `serve`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use moeflux_server::{AllowedOrigin, LogFormat, TlsFiles, UnixSocket, parse_duration};

use super::cache::ServerCacheArgs;
use super::headings::MODEL;
use super::model::ModelArgs;
use crate::bytes;
use crate::dial::Place;
use crate::values::{Sessions, count, seed, sessions, whole_number};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux serve -m org/name
  moeflux serve -m ./models --hub --idle-timeout 10m
  moeflux serve -m ./model --host 0.0.0.0 --api-key-file keys.txt")]
pub(crate) struct ServeArgs {
    /// Address, or unix:PATH
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", value_parser = place, conflicts_with_all = ["host", "port"])]
    addr: Place,
    /// The host alone; 0.0.0.0 needs a file of keys
    #[arg(long, value_name = "HOST", value_parser = host)]
    host: Option<IpAddr>,
    /// Only the port
    #[arg(long, short, value_name = "PORT", value_parser = port, allow_negative_numbers = true)]
    port: Option<u16>,
    /// The socket's rights, as in chmod
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    socket_mode: u32,
    /// Certificate with its chain (PEM), for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Also listen for Ollama's clients (11434)
    #[arg(long, value_name = "PORT", value_parser = port, allow_negative_numbers = true)]
    pub(crate) ollama_port: Option<u16>,
    /// API keys [default: $MOEFLUX_API_KEY, else none]
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Keys with names and limits, of `moeflux keys`
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
    /// Name in the API; repeatable [default: its own]
    #[arg(long, value_name = "NAME")]
    #[arg(aliases = ["served-model-name", "alias"])]
    pub(crate) model_name: Vec<String>,
    /// Accept any model name in requests
    #[arg(long)]
    pub(crate) any_model: bool,
    /// Answers at once [default: 8; auto with --ctx]
    #[arg(long, value_name = "N", value_parser = sessions, allow_negative_numbers = true)]
    #[arg(aliases = ["parallel", "max-num-seqs"])]
    pub(crate) sessions: Option<Sessions>,
    /// Requests that may wait
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count, allow_negative_numbers = true)]
    pub(crate) queue: usize,
    /// Longest answer [default: the context]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,
    /// Most tokens of thoughts, 0 for none
    #[arg(long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true)]
    pub(crate) thinking_budget: Option<usize>,
    /// Largest request
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = bytes::parse_some, allow_negative_numbers = true)]
    pub(crate) max_body: u64,
    /// Fetch images from addresses in requests
    #[arg(long)]
    pub(crate) allow_image_urls: bool,
    /// Open connections
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_connections: usize,
    /// Seconds for answers at shutdown
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = seed, allow_negative_numbers = true)]
    pub(crate) grace: u64,
    /// Allow pages of this origin; repeatable
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors_origin: Vec<AllowedOrigin>,
    /// Log every request, with its key and tokens
    #[arg(long)]
    pub(crate) log_requests: bool,
    /// Lines of the log: text, or json
    #[arg(long, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Log every prompt
    #[arg(long)]
    pub(crate) log_prompts: bool,
    /// End when standard input does
    #[arg(long, hide = true)]
    pub(crate) until_eof: bool,
    /// Refuse requests with unknown fields
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Also serve the models of the Hub's cache
    #[arg(long, help_heading = MODEL)]
    pub(crate) hub: bool,
    /// With keys: let clients pull and delete models
    #[arg(long, requires = "hub", help_heading = MODEL)]
    pub(crate) manage: bool,
    /// Unload a model after this time unused, as 5m
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_negative_numbers = true, help_heading = MODEL)]
    #[arg(aliases = ["keep-alive", "sleep-idle-seconds"])]
    pub(crate) idle_timeout: Option<Duration>,
    /// Models in memory [default: as it allows]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, help_heading = MODEL)]
    #[arg(aliases = ["models-max", "max-loaded-models"])]
    pub(crate) max_loaded: Option<usize>,
    // Before the next field, which takes the values out of the matches.
    #[command(flatten)]
    pub(crate) models: NamedModels,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) prompt_cache: ServerCacheArgs,
}

/// All values of `--model`, which may be repeated here: [`ModelArgs`] defines it and has the first.
#[derive(Clone, Debug)]
pub(crate) struct NamedModels(Vec<String>);

impl Deref for NamedModels {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl FromArgMatches for NamedModels {
    fn from_arg_matches(matches: &ArgMatches) -> Result<NamedModels, clap::Error> {
        let named = matches.get_many::<String>("model").into_iter().flatten();
        Ok(NamedModels(named.cloned().collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = NamedModels::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for NamedModels {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl ServeArgs {
    /// The address to listen on, from `--addr` or from `--host` and `--port`.
    pub(crate) fn address(&self) -> SocketAddr {
        let addr = match &self.addr {
            Place::Tcp(addr) => *addr,
            Place::Unix(_) => SocketAddr::new(DEFAULT_HOST, DEFAULT_PORT),
        };
        let ip = self.host.unwrap_or(addr.ip());
        SocketAddr::new(ip, self.port.unwrap_or(addr.port()))
    }

    /// The Unix socket to listen on in place of the address.
    pub(crate) fn unix_socket(&self) -> Option<UnixSocket> {
        match &self.addr {
            Place::Tcp(_) => None,
            Place::Unix(path) => Some(UnixSocket { path: path.clone(), mode: self.socket_mode }),
        }
    }

    /// The files of the certificate.
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let (cert, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { cert, key })
    }
}

/// Reads `unix:PATH`, or an address.
pub(super) fn place(text: &str) -> Result<Place, String> {
    match text.strip_prefix("unix:").map(|path| path.strip_prefix("//").unwrap_or(path)) {
        Some("") => Err(String::from("write the path of the socket, such as unix:/run/m.sock")),
        Some(path) => Ok(Place::Unix(PathBuf::from(path))),
        None => address(text).map(Place::Tcp),
    }
}

/// Reads the rights of a file.
fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| String::from("write three octal digits, such as 660"))
}

/// The address of a server without flags.
const DEFAULT_HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DEFAULT_PORT: u16 = 8080;

/// Reads `127.0.0.1:8080`, `localhost:8080`, `:8080`, `8080`, `0.0.0.0` or `[::1]:8080`, also
/// with `http://` before it.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let remedy = "write an IP address or localhost and a port, such as 127.0.0.1:8080";
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    if let Ok(addr) = bare.parse() {
        return Ok(addr);
    }
    if let Ok(ip) = host(bare) {
        return Ok(SocketAddr::new(ip, DEFAULT_PORT));
    }
    let (name, number) = bare.rsplit_once(':').unwrap_or(("", bare));
    let ip = if name.is_empty() { Ok(DEFAULT_HOST) } else { host(name) };
    match (ip, port(number)) {
        (Ok(ip), Ok(port)) => Ok(SocketAddr::new(ip, port)),
        _ => Err(remedy.to_owned()),
    }
}

/// Reads an IP address, or a name that needs no resolver.
fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(DEFAULT_HOST),
        "*" => Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        _ => {
            let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let ip = bare.unwrap_or(text).parse();
            ip.map_err(|_| String::from("write an IP address, such as 127.0.0.1, or localhost"))
        }
    }
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| String::from("write a port from 0 to 65535"))
}

/// A scheme, a host and perhaps a port, as browsers send them.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, want) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("localhost:9000", "127.0.0.1:9000"),
            ("localhost", "127.0.0.1:8080"),
            (":9000", "127.0.0.1:9000"),
            ("9000", "127.0.0.1:9000"),
            ("0.0.0.0", "0.0.0.0:8080"),
            ("*:1", "0.0.0.0:1"),
            ("[::1]:5", "[::1]:5"),
            ("[::1]", "[::1]:8080"),
            ("::1", "[::1]:8080"),
            ("http://localhost:8080/", "127.0.0.1:8080"),
        ] {
            assert_eq!(address(text).map(|addr| addr.to_string()), Ok(want.to_owned()), "{text}");
        }
        for text in ["", "nowhere", "nowhere:80", "127.0.0.1:", "localhost:x", "1.2.3:4", ":70000"]
        {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
