//! `moeflux launch`: an agent on a model of this machine.

mod agent;
mod child;
mod server;

use anyhow::{Result, bail};

use self::agent::{KEY_VARIABLE, Setup, Value};
use self::server::{Facts, Running, Started};
use super::serve::{keys, own_name};
use crate::args::{Agent, LaunchArgs};
use crate::error::UsageError;
use crate::report::note;

/// Runs an agent to its end; its exit code.
pub(crate) fn run(args: &LaunchArgs) -> Result<u8> {
    let keys = keys(args.api_key_file.as_deref())?;
    let key = keys.first().map(String::as_str);
    let server = Running::new(args.addr, args.tls_ca.as_deref())?;
    let running = find_running(args, &server, key)?;
    if let Some(ctx) = running.as_ref().map_or(args.ctx, |facts| facts.ctx) {
        check_room(args, ctx, running.is_some())?;
    }
    if args.print {
        super::print(&shell_commands(args, &server.url, running, key.is_some()))?;
        return Ok(0);
    }
    let agent = args.agent;
    let Some(program) = agent.find() else {
        bail!("{} is not installed: {}", agent.program(), agent.install_command());
    };
    let (started, url, facts) = match running {
        Some(facts) => (None, server.url, facts),
        None => {
            let started = Started::new(args, key)?;
            let (url, facts) = (started.url.clone(), started.facts.clone());
            (Some(started), url, facts)
        }
    };
    if let Some(ctx) = facts.ctx {
        check_room(args, ctx, false)?;
        warn_of_little_room(agent, ctx);
    }
    let mut setup = agent.setup(&url, &facts, key.is_some());
    setup.trust(args.tls_ca.as_deref());
    let code = child::run(&program, &setup, key.unwrap_or_default(), &args.args);
    if let Some(started) = started {
        started.end();
    }
    code
}

/// What the server at the address has, where one runs; refuses one that has something else.
fn find_running(args: &LaunchArgs, server: &Running, key: Option<&str>) -> Result<Option<Facts>> {
    if args.addr.port() == 0 {
        return Ok(None);
    }
    let url = &server.url;
    let wanted = args.model.iter().flat_map(|model| [model.clone(), own_name(Some(model))]);
    let wanted: Vec<String> = wanted.collect();
    let Some(facts) = server::ask(server, key, &wanted)? else {
        if args.tls_ca.is_some() {
            bail!(
                "no server listens at {url}: start one with moeflux serve --tls-cert FILE --tls-key FILE, \
                 or leave --tls-ca out"
            );
        }
        return Ok(None);
    };
    if let Some(model) = &args.model {
        let is_there = |name: &str| facts.names.iter().any(|other| other == name);
        if !is_there(model) && !is_there(&own_name(Some(model))) {
            bail!(
                "--model {model}: the server at {url} has {}: end it, choose another --addr, or leave \
                 --model out",
                facts.model
            );
        }
    }
    if let (Some(wanted), Some(ctx)) = (args.ctx, facts.ctx)
        && wanted > ctx
    {
        bail!(
            "--ctx {wanted}: the server at {url} has a context of {ctx} tokens: end it, choose another \
             --addr, or leave --ctx out"
        );
    }
    Ok(Some(facts))
}

/// Refuses a context that the agent's first prompt fills.
fn check_room(args: &LaunchArgs, ctx: usize, is_running: bool) -> Result<()> {
    let (name, n) = (args.agent.name(), args.agent.first_prompt());
    if ctx > n {
        return Ok(());
    }
    let enough = (2 * n).next_power_of_two();
    let remedy = if is_running { "start the server with" } else { "give" };
    let message = format!(
        "{name} begins with a prompt of about {n} tokens, and the context has room for {ctx}: \
         {remedy} --ctx {enough}, and a model that was made for that"
    );
    Err(UsageError(message).into())
}

fn warn_of_little_room(agent: Agent, ctx: usize) {
    let n = agent.first_prompt();
    if ctx < 2 * n {
        let name = agent.name();
        note(
            false,
            &format!(
                "a context of {ctx} tokens is small for {name}, whose first prompt takes about {n}: \
                 it will often have to summarise (--ctx {})",
                (2 * n).next_power_of_two()
            ),
        );
    }
}

/// The server's and the agent's command with what the latter is started with, for a shell.
fn shell_commands(args: &LaunchArgs, url: &str, running: Option<Facts>, has_key: bool) -> String {
    let mut text = String::new();
    if running.is_none() {
        text.push_str("moeflux");
        for arg in server::serve_args(args) {
            text.push_str(&format!(" {}", quoted(&arg.to_string_lossy())));
        }
        text.push_str(" &\n");
    }
    let facts = running.unwrap_or_else(|| {
        let model = own_name(args.model.as_deref());
        Facts { names: vec![model.clone()], model, ctx: args.ctx }
    });
    let mut setup = args.agent.setup(url, &facts, has_key);
    setup.trust(args.tls_ca.as_deref());
    let Setup { variables, removed, args: own } = setup;
    if !removed.is_empty() {
        text.push_str(&format!("unset {}\n", removed.join(" ")));
    }
    for (name, value) in variables {
        let value = match (value, &args.api_key_file) {
            (Value::Text(text), _) => quoted(&text),
            // Keys stay out of terminals and histories.
            (Value::Key, Some(file)) => {
                format!("\"$(grep -m 1 . {})\"", quoted(&file.to_string_lossy()))
            }
            (Value::Key, None) => format!("\"${KEY_VARIABLE}\""),
        };
        text.push_str(&format!("{name}={value} \\\n"));
    }
    text.push_str(args.agent.program());
    for arg in own.iter().chain(&args.args) {
        text.push_str(&format!(" {}", quoted(&arg.to_string_lossy())));
    }
    text.push('\n');
    text
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
