//! `moeflux serve`: models over HTTP.

mod library;
mod own_name;

use std::env::VarError;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use moeflux_engine::Engine;
use moeflux_server::{Introduction, Library, LibraryModel, Server, ServerOptions};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::library::{Setup, Shelf};
pub(super) use self::own_name::own_name;
use crate::args::ServeArgs;
use crate::error::UsageError;
use crate::values::Sessions;
use crate::{demo, locate, report};

/// Holds a key where --api-key-file is not given: other users see arguments,
/// not environments.
const KEY_VARIABLE: &str = "MOEFLUX_API_KEY";

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    if args.until_eof {
        end_with_input()?;
    }
    let mut options = options(args)?;
    options.check()?;
    let served = served(args)?;
    options.model_names = served.only_names();
    if let Some((_, engine)) = &served.loaded {
        let plan = engine.plan();
        report::note(args.quiet, &capacity(plan.n_sessions, plan.ctx));
    }
    if served.models.len() != 1 {
        report::note(args.quiet, &several(&served.models));
    }
    let device = served.loaded.as_ref().map(|(_, engine)| engine.device().clone());
    let Served { shelf, default, loaded, .. } = served;
    let server = Server::bind_library(Arc::new(shelf), default, loaded, options)?;
    for warning in server.warnings() {
        report::note(args.quiet, &format!("warning: {warning}"));
    }
    if let Some(device) = device {
        report::device_aside(args.quiet, &device);
    }
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

/// How the server is set up, its models left aside.
fn options(args: &ServeArgs) -> Result<ServerOptions> {
    let sessions = Sessions::of_server(args.sessions, args.model.ctx);
    let is_demo = args.models.is_empty() && !args.hub;
    let api_keys = keys(args.api_key_file.as_deref())?;
    Ok(ServerOptions {
        // A key alone does not let its client remove what all use.
        manages_models: args.hub && (args.manage || (api_keys.is_empty() && args.keys.is_none())),
        api_keys,
        unix_socket: args.unix_socket(),
        tls: args.tls(),
        keys_file: args.keys.clone(),
        any_model: args.any_model,
        introduction: is_demo.then(introduction),
        ollama_port: args.ollama_port,
        n_sessions: match sessions {
            Sessions::Exactly(n) => n,
            Sessions::Auto => Sessions::MOST,
        },
        max_waiting: args.queue,
        max_connections: args.max_connections,
        max_body: usize::try_from(args.max_body).unwrap_or(usize::MAX),
        allow_image_urls: args.allow_image_urls,
        max_tokens: args.max_tokens,
        thinking_budget: args.thinking_budget,
        idle_timeout: args.idle_timeout,
        max_loaded: args.max_loaded,
        response_dir: args.prompt_cache.named_dir().map(|dir| dir.join("responses")),
        grace: Duration::from_secs(args.grace),
        cors_origins: args.cors_origin.clone(),
        log_requests: args.log_requests,
        log_format: args.log_format,
        log_prompts: args.log_prompts,
        is_strict: args.strict,
        ..ServerOptions::new(args.address(), String::new())
    })
}

/// The models of a server, and the one that is loaded from the beginning.
struct Served {
    shelf: Shelf,
    models: Vec<LibraryModel>,
    /// The model of requests that name none.
    default: Option<String>,
    loaded: Option<(String, Engine)>,
}

impl Served {
    /// The names of the model, where there is but one.
    fn only_names(&self) -> Vec<String> {
        match &self.models[..] {
            [one] => one.names.clone(),
            _ => Vec::new(),
        }
    }
}

/// Finds the models of the command line, and loads the first that it names.
fn served(args: &ServeArgs) -> Result<Served> {
    let setup = Setup {
        model: args.model.clone(),
        kept: args.prompt_cache.kept(),
        sessions: Sessions::of_server(args.sessions, args.model.ctx),
        is_quiet: args.quiet,
    };
    let hub = if args.hub { Some(locate::hub_env()?) } else { None };
    let mut shelf = Shelf::new(setup, hub);
    check_names(args, args.models.len() > 1 || args.hub)?;
    let mut default = None;
    if args.models.is_empty() && !args.hub {
        default = shelf.add(None, &args.model_name)?;
    }
    for model in args.models.iter() {
        let names = if args.models.len() == 1 { &args.model_name[..] } else { &[] };
        let name = shelf.add(Some(model), names)?;
        default = default.or(name);
    }
    check_names(args, default.is_none())?;
    let models = shelf.models();
    let loaded = match &default {
        Some(name) => Some((name.clone(), shelf.open_named(name)?)),
        None => None,
    };
    Ok(Served { shelf, models, default, loaded })
}

/// Refuses a name for what may be several models.
fn check_names(args: &ServeArgs, has_several: bool) -> Result<()> {
    if args.model_name.is_empty() || !has_several {
        return Ok(());
    }
    let message = "--model-name names one model: leave it out where several are served, which \
                   /v1/models lists by their own names";
    Err(UsageError(message.to_owned()).into())
}

/// The models of a server in a line.
fn several(models: &[LibraryModel]) -> String {
    const MOST: usize = 5;
    let names = models.iter().filter_map(|model| model.names.first());
    let names: Vec<&str> = names.take(MOST).map(String::as_str).collect();
    let rest = match models.len().saturating_sub(MOST) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    match models.len() {
        0 => String::from("no models yet: POST /api/pull downloads one"),
        n => format!("{n} models, loaded by requests that name them: {}{rest}", names.join(", ")),
    }
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
