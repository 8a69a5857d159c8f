//! `moeflux rm`: removes a model from the Hub's cache.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use moeflux_hub::{HubEnv, HubError, Removal, removal, stored};

use super::print;
use crate::args::RmArgs;
use crate::bytes::show;
use crate::error::UsageError;
use crate::words::did_you_mean;
use crate::{locate, published};

pub(crate) fn run(args: &RmArgs) -> Result<()> {
    let env = locate::hub_env()?;
    // A mistake in the last name is said before anything is gone. What is found locks its repository, which
    // two names may share.
    for name in &args.names {
        removal(repository(name), &env).map_err(|err| explain(err, name, &env))?;
    }
    for (n_done, name) in args.names.iter().enumerate() {
        let found = match removal(repository(name), &env) {
            // It went with a name before.
            Err(HubError::NotStored { .. }) if n_done > 0 => continue,
            found => found.map_err(|err| explain(err, name, &env))?,
        };
        if !args.yes && !agrees(&found, &env)? {
            print(&format!("{} stays\n", found.name))?;
            continue;
        }
        let done = format!("removed {} ({})\n", found.name, show(found.bytes));
        found.run()?;
        print(&done)?;
    }
    Ok(())
}

/// The name on the Hub: that of a short name, or what was written.
fn repository(name: &str) -> &str {
    published::by_name(name).map_or(name, |found| &found.model)
}

/// What is not in the cache may be a path, or a name with a mistake in it.
fn explain(err: HubError, name: &str, env: &HubEnv) -> anyhow::Error {
    match &err {
        HubError::NotStored { .. } | HubError::Name { .. } if Path::new(name).exists() => {
            let message = format!(
                "'{name}' is a path: rm removes from the Hub's cache alone; remove the path with your \
                 system's means"
            );
            UsageError(message).into()
        }
        HubError::Name { .. } => UsageError(format!("NAME: {err}")).into(),
        HubError::NotStored { what, .. } => {
            let all = stored(env).unwrap_or_default();
            let names = all.iter().flat_map(|found| {
                let models = found.models.iter().map(|model| &model.name[..]);
                models.chain([&found.repo[..]])
            });
            let near = did_you_mean(what, names).map(|near| format!("did you mean {near}? "));
            let advice = format!("{}moeflux models lists what is there", near.unwrap_or_default());
            anyhow::anyhow!("{err}: {advice}")
        }
        _ => err.into(),
    }
}

/// Asks on the terminal.
fn agrees(found: &Removal, env: &HubEnv) -> Result<bool> {
    if !io::stdin().is_terminal() {
        let message = format!(
            "rm asks before it removes {}: give --yes where standard input is no terminal",
            found.name
        );
        return Err(UsageError(message).into());
    }
    let files = if found.n_files == 1 { "file" } else { "files" };
    let mut out = io::stderr();
    // There is nothing to report to when standard error is closed; the answer is then no.
    let _ = write!(
        out,
        "remove {} ({} in {} {files}) from {}? [y/N] ",
        found.name,
        show(found.bytes),
        found.n_files,
        env.cache_dir.display()
    );
    let _ = out.flush();
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("cannot read standard input")?;
    Ok(["y", "yes"].contains(&line.trim().to_lowercase().as_str()))
}
