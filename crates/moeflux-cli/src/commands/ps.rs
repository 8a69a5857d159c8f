//! `moeflux ps`: what a running server does.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};
use ureq::Agent;

use super::print;
use super::serve::keys;
use crate::args::PsArgs;
use crate::bytes::show;
use crate::progress::duration;

/// How long a server may take for a reply: one that evaluates a prompt answers all the same.
const REPLY: Duration = Duration::from_secs(10);

/// Over how long the rate of a server that answers is taken.
const SPAN: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &PsArgs) -> Result<()> {
    let keys = keys(args.api_key_file.as_deref())?;
    let server = Server { addr: args.address, key: keys.first().map(String::as_str) };
    let mut status = server.status()?;
    let rate = match status.count("running") {
        0 => None,
        _ => {
            let before = status.generated();
            std::thread::sleep(SPAN);
            status = server.status()?;
            // The server's own clock: this process may have waited for longer.
            let seconds = status.uptime() - before.uptime;
            (seconds > 0.0)
                .then(|| (status.count("generated_tokens") - before.tokens) as f64 / seconds)
        }
    };
    print(&if args.json {
        to_json(&status, rate, &server)?
    } else {
        to_text(&status, rate, &server)
    })?;
    Ok(())
}

/// A server's description of itself.
struct Status(Value);

/// Tokens that were generated until a time.
struct Generated {
    uptime: f64,
    tokens: u64,
}

impl Status {
    fn count(&self, field: &str) -> u64 {
        self.0["now"][field].as_u64().unwrap_or(0)
    }

    fn uptime(&self) -> f64 {
        self.0["now"]["uptime_seconds"].as_f64().unwrap_or(0.0)
    }

    fn generated(&self) -> Generated {
        Generated { uptime: self.uptime(), tokens: self.count("generated_tokens") }
    }

    fn bytes(&self, field: &str) -> String {
        self.0["memory"][field].as_u64().map_or_else(|| String::from("-"), show)
    }

    fn text(&self, field: &str) -> &str {
        self.0["model"][field].as_str().unwrap_or("-")
    }
}

struct Server<'a> {
    addr: SocketAddr,
    key: Option<&'a str>,
}

impl Server<'_> {
    fn status(&self) -> Result<Status> {
        let addr = self.addr;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(REPLY));
        let agent: Agent = config.build().into();
        let mut request = agent.get(format!("http://{addr}/status"));
        if let Some(key) = self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::Io(err)) if err.kind() == ErrorKind::ConnectionRefused => {
                bail!("{}", nothing_at(addr))
            }
            Err(ureq::Error::ConnectionFailed) => bail!("{}", nothing_at(addr)),
            Err(err) => {
                return Err(anyhow!(err).context(format!("the server at {addr} (--address)")));
            }
        };
        let text = response.body_mut().read_to_string().unwrap_or_default();
        match response.status().as_u16() {
            200 => {}
            401 if self.key.is_none() => {
                bail!(
                    "the server at {addr} wants a key: give --api-key-file, or set MOEFLUX_API_KEY"
                )
            }
            401 => bail!(
                "the server at {addr} does not know the first key that was given (--api-key-file, \
                 MOEFLUX_API_KEY)"
            ),
            _ => bail!("{}", another_at(addr)),
        }
        let value: Value = serde_json::from_str(&text).map_err(|_| anyhow!(another_at(addr)))?;
        match value["model"]["name"].is_string() && value["now"].is_object() {
            true => Ok(Status(value)),
            false => bail!("{}", another_at(addr)),
        }
    }
}

fn nothing_at(addr: SocketAddr) -> String {
    format!(
        "no server listens at {addr}: start one with moeflux serve, or name its address with --address"
    )
}

fn another_at(addr: SocketAddr) -> String {
    format!("another program answers at {addr}: name the server's address with --address")
}

fn to_text(status: &Status, rate: Option<f64>, server: &Server<'_>) -> String {
    let rate = match rate {
        Some(rate) => format!("{rate:.1} tok/s now"),
        None => String::from("idle"),
    };
    let waiting = match status.count("waiting") {
        0 => String::new(),
        n => format!(", {n} requests wait"),
    };
    let model = &status.0["model"];
    let count = |field: &str| model[field].as_u64().unwrap_or(0);
    format!(
        "{name} at http://{addr}, for {up}\n\
         family     {family}, {per_token} of {experts} experts a token\n\
         contexts   {running} of {sessions} in use, {ctx} tokens each{waiting}\n\
         speed      {rate}; {generated} tokens so far\n\
         memory     {resident} in use, {planned} planned, experts' cache {cache} of {all}\n",
        name = status.text("name"),
        addr = server.addr,
        up = duration(status.uptime()),
        family = status.text("family"),
        per_token = count("experts_per_token"),
        experts = count("experts"),
        running = status.count("running"),
        sessions = status.count("sessions"),
        ctx = count("context"),
        generated = status.count("generated_tokens"),
        resident = status.bytes("resident_bytes"),
        planned = status.bytes("planned_bytes"),
        cache = status.bytes("cache_bytes"),
        all = status.bytes("experts_bytes"),
    )
}

fn to_json(status: &Status, rate: Option<f64>, server: &Server<'_>) -> Result<String> {
    let mut value = status.0.clone();
    value["address"] = json!(server.addr.to_string());
    value["now"]["tok_s"] = json!(rate);
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
