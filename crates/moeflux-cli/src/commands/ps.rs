//! `moeflux ps`: what a running server does.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};

use super::print;
use super::serve::keys;
use crate::args::PsArgs;
use crate::bytes::show;
use crate::dial::{Dial, certificate_problem};
use crate::progress::duration;

/// How long a server may take for a reply: one that evaluates a prompt answers all the same.
const REPLY: Duration = Duration::from_secs(10);

/// Over how long the rate of a server that answers is taken.
const SPAN: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &PsArgs) -> Result<()> {
    let keys = keys(args.api_key_file.as_deref())?;
    // No server has another key than one of these characters, and no request could hold it.
    if keys.first().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        let source = match &args.api_key_file {
            Some(path) => format!("{} (--api-key-file)", path.display()),
            None => String::from("$MOEFLUX_API_KEY"),
        };
        bail!("the first key of {source} is no key: write one of printable ASCII without spaces");
    }
    let dial = Dial::new(args.address.clone(), args.tls_ca.as_deref())?;
    let server = Server { dial, key: keys.first().map(String::as_str) };
    let mut status = server.status()?;
    let rate = match status.count("running") {
        0 => Rate::Idle,
        _ => {
            let before = status.generated();
            std::thread::sleep(SPAN);
            status = server.status()?;
            status.generated().since(&before)
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

/// What a server generates now.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rate {
    Idle,
    /// The counters do not tell, as after a start between two looks at them.
    Unknown,
    /// Tokens a second.
    Known(f64),
}

impl Generated {
    /// The rate since an earlier time, by the server's own clock: this process may have waited for longer.
    fn since(&self, before: &Generated) -> Rate {
        let seconds = self.uptime - before.uptime;
        match self.tokens.checked_sub(before.tokens) {
            Some(tokens) if seconds > 0.0 => Rate::Known(tokens as f64 / seconds),
            _ => Rate::Unknown,
        }
    }
}

/// The longest time that a server is taken to run, in seconds: a thousand years.
const LONGEST: f64 = 1000.0 * 365.0 * 86_400.0;

impl Status {
    fn count(&self, field: &str) -> u64 {
        self.0["now"][field].as_u64().unwrap_or(0)
    }

    fn uptime(&self) -> f64 {
        let seconds = self.0["now"]["uptime_seconds"].as_f64();
        seconds.filter(|seconds| (0.0..LONGEST).contains(seconds)).unwrap_or(0.0)
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
    dial: Dial,
    key: Option<&'a str>,
}

impl Server<'_> {
    fn status(&self) -> Result<Status> {
        let addr = &self.dial;
        let agent = addr.agent(REPLY);
        let mut request = agent.get(format!("{}/status", Dial::ORIGIN));
        if let Some(key) = self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::Io(err))
                if [ErrorKind::ConnectionRefused, ErrorKind::NotFound].contains(&err.kind()) =>
            {
                bail!("{}", nothing_at(addr))
            }
            Err(ureq::Error::Io(err)) if certificate_problem(&err).is_some() => {
                bail!(
                    "the server at {addr} has another certificate than --tls-ca names: give the file of \
                     its --tls-cert, or that of its authority ({err})"
                )
            }
            Err(ureq::Error::ConnectionFailed) => bail!("{}", nothing_at(addr)),
            Err(ureq::Error::Timeout(_)) => bail!("{}", silence_at(addr)),
            // Something else listens, and answers in its own language.
            Err(ureq::Error::Protocol(_) | ureq::Error::BadUri(_)) => bail!("{}", another_at(addr)),
            Err(ureq::Error::Io(err)) if is_cut_off(&err) => bail!("{}", another_at(addr)),
            Err(err) => {
                let words = format!(
                    "cannot ask the server at {addr}: name another address with --address, or start a \
                     server there with moeflux serve"
                );
                return Err(anyhow!(err).context(words));
            }
        };
        let text = match response.body_mut().read_to_string() {
            Err(ureq::Error::Timeout(_)) => bail!("{}", silence_at(addr)),
            text => text.unwrap_or_default(),
        };
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
        // Where no model is loaded it is null.
        let has_model =
            value["model"]["name"].is_string() || value.get("model") == Some(&Value::Null);
        if has_model && value["now"].is_object() {
            Ok(Status(value))
        } else {
            bail!("{}", another_at(addr))
        }
    }
}

fn nothing_at(addr: &Dial) -> String {
    format!(
        "no server listens at {addr}: start one with moeflux serve, or name its address with --address"
    )
}

fn silence_at(addr: &Dial) -> String {
    let seconds = REPLY.as_secs();
    format!(
        "the server at {addr} did not answer within {seconds} s: look whether it hangs, or name \
         another address with --address"
    )
}

/// Whether the other side ended the connection in place of an answer.
fn is_cut_off(err: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, UnexpectedEof};
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, UnexpectedEof];
    kinds.contains(&err.kind())
}

fn another_at(addr: &Dial) -> String {
    format!(
        "another program answers at {addr}: name the server's address with --address, and its certificate \
         with --tls-ca where it has TLS"
    )
}

fn to_text(status: &Status, rate: Rate, server: &Server<'_>) -> String {
    let rate = match rate {
        Rate::Known(rate) => format!("{rate:.1} tok/s now"),
        Rate::Unknown => String::from("- (the server's counters do not tell)"),
        Rate::Idle => String::from("idle"),
    };
    let waiting = match status.count("waiting") {
        0 => String::new(),
        n => format!(", {n} requests wait"),
    };
    let model = &status.0["model"];
    if model.is_null() {
        return format!(
            "no model is loaded at {addr}, for {up}: a request loads the one that it names\n\
             memory     {resident} in use{waiting}\n",
            addr = server.dial,
            up = duration(status.uptime()),
            resident = status.bytes("resident_bytes"),
        );
    }
    let count = |field: &str| model[field].as_u64().unwrap_or(0);
    format!(
        "{name} at {addr}, for {up}\n\
         family     {family}, {per_token} of {experts} experts a token\n\
         contexts   {running} of {sessions} in use, {ctx} tokens each{waiting}\n\
         speed      {rate}; {generated} tokens so far\n\
         memory     {resident} in use, {planned} planned, experts' cache {cache} of {all}\n",
        name = status.text("name"),
        addr = server.dial,
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

fn to_json(status: &Status, rate: Rate, server: &Server<'_>) -> Result<String> {
    let rate = match rate {
        Rate::Known(rate) => Some(rate),
        Rate::Idle | Rate::Unknown => None,
    };
    let mut value = status.0.clone();
    value["address"] = json!(server.dial.to_string());
    value["now"]["tok_s"] = json!(rate);
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_go_back_tell_no_rate() {
        let at = |uptime, tokens| Generated { uptime, tokens };
        assert_eq!(at(11.0, 30).since(&at(10.0, 20)), Rate::Known(10.0));
        assert_eq!(at(11.0, 20).since(&at(10.0, 20)), Rate::Known(0.0));
        // Another server, at the same address.
        assert_eq!(at(11.0, 10).since(&at(10.0, 20)), Rate::Unknown);
        assert_eq!(at(1.0, 30).since(&at(10.0, 20)), Rate::Unknown);
        assert_eq!(at(10.0, 30).since(&at(10.0, 20)), Rate::Unknown);
    }

    #[test]
    fn a_time_that_cannot_be_is_none() {
        let of = |seconds: f64| Status(json!({"now": {"uptime_seconds": seconds}})).uptime();
        assert_eq!([of(5.0), of(-5.0), of(1e308)], [5.0, 0.0, 0.0]);
    }
}
