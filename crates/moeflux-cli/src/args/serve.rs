//! `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::cache::PromptCacheArgs;
use super::model::ModelArgs;
use crate::bytes;
use crate::values::count;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; addresses that other machines reach need --api-key-file
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) addr: SocketAddr,
    /// A file of keys, one a line, of which clients must show one [default: $MOEFLUX_API_KEY, else
    /// none is needed]
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// What clients call the model; may be given several times [default: the model's own name]
    #[arg(long, value_name = "NAME")]
    pub(crate) model_name: Vec<String>,
    /// Answer whatever model clients ask for
    #[arg(long)]
    pub(crate) any_model: bool,
    /// Answers made at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count, allow_negative_numbers = true)]
    pub(crate) sessions: usize,
    /// Requests that may wait for one of these
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count, allow_negative_numbers = true)]
    pub(crate) queue: usize,
    /// Tokens of an answer at most, whatever clients ask for [default: what the context has room for]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,
    /// Bytes of a request at most
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = bytes::parse_some, allow_negative_numbers = true)]
    pub(crate) max_body: u64,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_connections: usize,
    /// Seconds that answers may take to finish when the server is told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
    /// Let pages of this origin use the server, such as http://localhost:3000
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub(crate) cors_origin: Option<String>,
    /// Tell every request's kind, status and time on standard error
    #[arg(long)]
    pub(crate) log_requests: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// A scheme, a host and perhaps a port, as browsers send them.
fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_origin = host.is_some_and(|it| {
        !it.is_empty() && it.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b))
    });
    if is_origin {
        Ok(text.to_owned())
    } else {
        Err(String::from(
            "write a scheme, a host and perhaps a port, such as http://localhost:3000",
        ))
    }
}
