//! `moeflux serve`: the model over HTTP.

use std::env::VarError;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use moeflux_hub::{DEFAULT_ENDPOINT, Repo};
use moeflux_server::{Introduction, Server, ServerOptions};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::ServeArgs;
use crate::values::Sessions;
use crate::{demo, model, report};

/// Holds a key where --api-key-file is not given: other users see arguments,
/// not environments.
const KEY_VARIABLE: &str = "MOEFLUX_API_KEY";

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    if args.until_eof {
        end_with_input()?;
    }
    let mut names = args.model_name.clone();
    if names.is_empty() {
        names.push(own_name(args.model.model.as_deref()));
    }
    let sessions = Sessions::of_server(args.sessions, args.model.ctx);
    let mut options = ServerOptions {
        api_keys: keys(args.api_key_file.as_deref())?,
        unix_socket: args.unix_socket(),
        tls: args.tls(),
        keys_file: args.keys.clone(),
        model_names: names,
        any_model: args.any_model,
        introduction: args.model.model.is_none().then(introduction),
        ollama_port: args.ollama_port,
        n_sessions: match sessions {
            Sessions::Exactly(n) => n,
            Sessions::Auto => Sessions::MOST,
        },
        max_waiting: args.queue,
        max_connections: args.max_connections,
        max_body: usize::try_from(args.max_body).unwrap_or(usize::MAX),
        max_tokens: args.max_tokens,
        thinking_budget: args.thinking_budget,
        response_dir: args.prompt_cache.named_dir().map(|dir| dir.join("responses")),
        grace: Duration::from_secs(args.grace),
        cors_origins: args.cors_origin.clone(),
        log_requests: args.log_requests,
        log_format: args.log_format,
        log_prompts: args.log_prompts,
        is_strict: args.strict,
        ..ServerOptions::new(args.address(), String::new())
    };
    options.check()?;
    let engine = model::open_cached(&args.model, args.prompt_cache.kept(), sessions, args.quiet)?;
    let plan = engine.plan();
    options.n_sessions = plan.n_sessions;
    report::note(args.quiet, &capacity(plan.n_sessions, plan.ctx));
    let device = engine.device().clone();
    let server = Server::bind(engine, options)?;
    for warning in server.warnings() {
        report::note(args.quiet, &format!("warning: {warning}"));
    }
    report::device_aside(args.quiet, &device);
    let scheme = if args.tls().is_some() { "https" } else { "http" };
    let place = match args.unix_socket() {
        Some(socket) => format!("unix:{} ({scheme})", socket.path.display()),
        None => format!("{scheme}://{}", server.addr()),
    };
    report::note(args.quiet, &format!("listening on {place}"));
    if let Some(addr) = server.ollama_addr() {
        report::note(args.quiet, &format!("listening on {scheme}://{addr} for Ollama's clients"));
    }
    crate::interrupt::take_over(&[SIGINT, SIGTERM]);
    Ok(server.run()?)
}

/// How many answers are generated at once, and how long conversations may become.
fn capacity(n_sessions: usize, ctx: usize) -> String {
    match n_sessions {
        1 => format!("one answer at a time, with a context of {ctx} tokens; others wait for it"),
        n => format!("{n} answers at once, each with a context of {ctx} tokens; others wait"),
    }
}

/// What the page says of the demo model.
fn introduction() -> Introduction {
    let questions = demo::QUESTIONS.map(String::from).to_vec();
    Introduction { about: demo::ABOUT.to_owned(), questions }
}

/// Ends the program, as SIGTERM does, when standard input ends: with the process that holds its
/// other end.
fn end_with_input() -> Result<()> {
    let wait = || {
        // What cannot be read has ended.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = signal_hook::low_level::raise(SIGTERM);
    };
    let started = std::thread::Builder::new().name(String::from("until-eof")).spawn(wait);
    started.map(drop).context("cannot start a thread (--until-eof)")
}

/// Bytes of a file of keys, at most.
const MAX_KEY_FILE: u64 = 1 << 20;

/// The API keys of the file or the environment. A source that was named and holds no key is
/// refused, because the server would be open although the user wants it closed.
pub(super) fn keys(file: Option<&Path>) -> Result<Vec<String>> {
    let (text, source) = match file {
        Some(path) => (read_keys(path)?, format!("{} (--api-key-file)", path.display())),
        None => match std::env::var(KEY_VARIABLE) {
            Ok(text) => (text, format!("${KEY_VARIABLE}")),
            Err(VarError::NotPresent) => return Ok(Vec::new()),
            Err(VarError::NotUnicode(_)) => {
                bail!("${KEY_VARIABLE} is not UTF-8: write a key in ASCII")
            }
        },
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    if keys.is_empty() {
        bail!("{source} holds no key: write one a line, or leave it out");
    }
    Ok(keys)
}

fn read_keys(path: &Path) -> Result<String> {
    let name = || format!("cannot read {} (--api-key-file)", path.display());
    let mut text = String::new();
    let file = crate::files::open(path).with_context(name)?;
    let n_bytes = file.take(MAX_KEY_FILE + 1).read_to_string(&mut text).with_context(name)?;
    if n_bytes as u64 > MAX_KEY_FILE {
        bail!(
            "{} (--api-key-file) is longer than {MAX_KEY_FILE} bytes: name a file of keys",
            path.display()
        );
    }
    Ok(text)
}

/// The last part of a path or of a Hub name.
pub(super) fn own_name(model: Option<&str>) -> String {
    let Some(model) = model else { return String::from("moeflux-demo") };
    let path = match (std::fs::canonicalize(model), Repo::parse(model, DEFAULT_ENDPOINT)) {
        (Ok(path), _) => path,
        (Err(_), Ok(repo)) => PathBuf::from(repo.name),
        (Err(_), Err(_)) => PathBuf::from(model),
    };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| model.to_owned())
}
